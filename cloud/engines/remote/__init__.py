"""Engines that forward batches to another model server: TensorFlow Serving, or Triton.

Start with `engine`.
"""
