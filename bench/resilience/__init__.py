"""Benchmarks of failures: worker failover, model swap under load, and long runs with random faults.

Start with `failover`.
"""
