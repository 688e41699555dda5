"""Accounting for every frame, retries, liveness of the workers, and clock offsets.

Start with `ledger`.
"""
