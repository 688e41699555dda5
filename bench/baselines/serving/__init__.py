"""Reproduction of the first system's clients of TensorFlow Serving."""
