"""Code that all benchmarks share: comparison in rounds, statistics, frame accounting, process samples, output.

Start with `comparison`.
"""
