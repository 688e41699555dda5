"""Inference engines that need little space, for the vehicle and the worker: ONNX Runtime and TensorFlow Lite.

Start with `engine`, the contract of all engines; the worker has more of them, in `cloud.engines`.
"""
