"""The connection to a worker's gRPC server."""
