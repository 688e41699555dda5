"""The fixture with tiny real TensorFlow models."""

from tests.support.workshop import workshop

__all__ = ["workshop"]
