"""Benchmarks and fault tests: what Skylane itself costs and withstands.

Start with `cli`, which lists all benchmarks; `harness` has what they share.
"""
