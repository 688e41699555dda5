"""Reads bags of every supported format, including damaged bags.

Start with `bag` and `frames`.
"""
