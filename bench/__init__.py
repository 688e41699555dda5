"""Benchmarks, fault tests, studies and reports.

Start with `cli`, which lists all benchmarks; `harness` has what they share.
"""
