"""Transports: how frames reach a worker and results come back.

Start with `transport`, which has the contract and the table.
"""
