"""Converts a model to another file format and compares its outputs with the original's.

Start with `conversion`.
"""
