"""Engines: each runs model files of some formats on a device.

Start with `engine`, the contract and the table of engines.
"""
