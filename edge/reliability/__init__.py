"""Accounting for every frame, and decisions about retries: ledger, retry policy, worker liveness, clock offsets.

Start with `ledger`.
"""
