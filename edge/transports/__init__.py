"""Transports: how frames reach a worker and results come back.

Start with `transport`, the contract, and `table`, the table of transports.
"""
