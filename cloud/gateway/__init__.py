"""The gateway: HTTP and gRPC servers of a worker, for Skylane's own, TensorFlow Serving's and Open Inference calls.

Start with `gateway`; every call enters the worker through `submission`.
"""
