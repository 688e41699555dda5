"""The HTTP server of the gateway, and the routes of each protocol: Skylane, TensorFlow Serving, Open Inference, images.

Start with `server` and `call`; the limits of one connection are in `connection`, those of all calls in `cloud.gateway.limits`.
"""
