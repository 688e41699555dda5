"""Measures the effect of worker failures, model swaps and long runs with random faults.

Start with `failover`.
"""
