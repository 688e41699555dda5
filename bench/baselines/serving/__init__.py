"""Reproduction of an earlier system's clients of TensorFlow Serving."""
