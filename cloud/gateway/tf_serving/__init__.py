"""TensorFlow Serving's REST and gRPC protocols.

Start with `rest_routes` and `grpc_service`.
"""
