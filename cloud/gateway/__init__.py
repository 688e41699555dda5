"""The gateway: the worker's doors for REST and gRPC, beside the broker's."""
