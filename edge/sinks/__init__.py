"""Sinks: where results are written (PNG, video, bag, JSON lines, NumPy arrays).

Start with `sink`, which has the contract and the table; `writer` is the thread that calls them.
"""
