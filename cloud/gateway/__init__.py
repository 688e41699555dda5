"""The gateway: HTTP and gRPC servers of a worker for Skylane, TensorFlow Serving and Open Inference clients.

Start with `http.server` and `grpc.server`: beside each is a file for every protocol, and `common` has what both encodings
of a protocol share. Every frame enters the worker through `cloud.serving.submission`; `limits` holds for all calls.
"""
