"""Engines that forward batches to another model server (TensorFlow Serving, Triton).

Start with `engine`.
"""
