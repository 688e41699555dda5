"""Executors, which run the steps of a batch, on one machine or many.

Start with `local`; the contract and the table of executors are in `ops.batch.executor`.
"""
