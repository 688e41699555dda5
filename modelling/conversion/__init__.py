"""Converts a model to another file format and compares its answers with the original's.

Start with `conversion`.
"""
