"""Sinks: where results are written (PNG, video, bag, JSON lines, NumPy arrays).

Start with `sink`, the contract, and `table`, the table of sinks; `feed` is the thread that calls them.
"""
