"""Reads bags of every format, also damaged ones.

Start with `bag` and `frames`.
"""
