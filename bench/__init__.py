"""Benchmarks: what Skylane itself costs.

Start with `cli`, which lists all benchmarks; `harness` has what they share.
"""
