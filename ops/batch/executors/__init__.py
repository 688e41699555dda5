"""Executors: what runs the steps of a batch, on one machine or many.

Start with `executor`, the contract and the table of executors.
"""
