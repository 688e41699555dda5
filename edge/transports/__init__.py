"""Transports, which carry frames to workers and their replies back.

Start with `transport`, which has the contract and the table.
"""
