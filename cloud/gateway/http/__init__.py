"""The HTTP server of the gateway, its middleware, and the routes for health, metrics and Skylane's own messages.

Start with `server`; the limits are in `connection` (of one connection) and `concurrency_limit` (of all calls).
"""
