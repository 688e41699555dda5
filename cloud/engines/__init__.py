"""Engines that need a worker: TensorFlow, OpenVINO, TorchScript, and remote servers.

Start with `shared.inference.engine`, the contract, and `shared.inference.table`, the list of all engines.
"""
