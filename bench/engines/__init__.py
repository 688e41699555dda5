"""Compares inference engines, and variants of running a frozen graph in TensorFlow.

Start with `engine_comparison` and `tensorflow_comparison`.
"""
