"""Fixtures with tiny real TensorFlow and ONNX models."""

from tests.support.workshop import add_onnx, pictures, workshop

__all__ = ["add_onnx", "pictures", "workshop"]
