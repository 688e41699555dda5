"""The gateway: HTTP and gRPC servers of a worker for Skylane, TensorFlow Serving and Open Inference clients.

Start with `gateway`, `http_server` and `grpc_server`; every frame enters the worker through `submission`.
"""
