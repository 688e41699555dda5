"""The gRPC server of the gateway, and Skylane's own gRPC service.

Start with `server`.
"""
