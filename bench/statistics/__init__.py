"""Statistics of samples and of repeated runs.

Start with `description` and `runs`.
"""
