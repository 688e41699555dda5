"""Checks the clock offsets in the latency log against known clocks and links.

Start with `clock_accuracy`.
"""
