"""A running model, the contract and the table of engines, and the engines that a vehicle has room for.

Start with `engine`, the contract of all engines, and `model`; the worker has more engines, in `cloud.engines`.
"""
