"""Hostile input for the fault scenarios: damaged messages, decompression bombs, abusive clients.

Start with `mutations` and `attacks`.
"""
