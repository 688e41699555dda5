"""Chapters about a single run: its outcomes, stages, clocks and resources.

Start with `stages`.
"""
