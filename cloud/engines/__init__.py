"""Engines run model files of several formats on a device.

Start with `engine`, the contract, and `table`, the list of all engines.
"""
