"""Code that benchmarks share: alternating rounds, statistics of small samples, accounting, process logs.

Start with `round_stats`.
"""
