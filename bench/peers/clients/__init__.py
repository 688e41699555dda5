"""Clients of the compared servers.

Start with `client`, the contract.
"""
