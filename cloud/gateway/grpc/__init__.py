"""What all gRPC services share: calls, streams, limits and threads; and Skylane's own gRPC service.

Start with `call`.
"""
