"""The gRPC server of the gateway, and the service of each protocol: Skylane, TensorFlow Serving, Open Inference.

Start with `server` and `call`.
"""
