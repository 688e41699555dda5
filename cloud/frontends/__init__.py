"""Frontends of a broker: they turn MQTT messages into requests, and results into replies.

Start with `mqtt`; the contract is `cloud.frontend`, and the HTTP and gRPC frontends are in `cloud.gateway`.
"""
