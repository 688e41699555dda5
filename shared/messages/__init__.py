"""The MQTT and gRPC messages of protocol version 1 and their topics; every message is validated when it is read.

Start with `frame` (a frame and its result) and `topics`; `msgpack_reader` validates.
"""
