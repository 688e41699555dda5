"""The Open Inference Protocol (version 2) over REST and gRPC.

Start with `rest_routes` and `grpc_service`.
"""
