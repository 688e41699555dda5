"""Frontends: they turn messages of one protocol into requests, and results into replies.

Start with `frontend`, the contract and the table, then `mqtt`. The HTTP and gRPC frontends are in `cloud.gateway`.
"""
