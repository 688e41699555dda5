"""Descriptive statistics of latency samples, and statistical tests over repeated runs.

Start with `description` (one sample) and `comparison` (two groups of runs).
"""
