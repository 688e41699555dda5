"""What all HTTP routes share: calls, connections, middleware, JSON bodies; and the worker's own routes.

Start with `call`; the limits are in `connection` (of one connection) and `concurrency_limit` (of all calls).
"""
