"""Benchmarks of overhead, throughput and cost on one machine.

Start with `overhead`.
"""
