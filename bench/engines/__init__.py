"""Compares inference engines, and the ways to run a frozen graph in TensorFlow.

Start with `comparison` and `tensorflow_comparison`.
"""
