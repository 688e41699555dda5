"""Frontends of the broker: they turn MQTT messages into requests, control operations and clock replies.

Start with `mqtt`. The HTTP and gRPC frontends are in `cloud.gateway`.
"""
