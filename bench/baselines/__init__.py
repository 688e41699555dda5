"""Reproductions of earlier offloading systems, to compare Skylane with.

Start with `catalogue` and `comparison`.
"""
