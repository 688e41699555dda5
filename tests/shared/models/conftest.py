"""Fixtures with tiny real TensorFlow models."""

from tests.support.workshop import pictures, workshop

__all__ = ["pictures", "workshop"]
