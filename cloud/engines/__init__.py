"""Engines run model files of several formats on a device.

Start with `engine`: the contract and the table of engines.
"""
