"""Encodings of untrusted data that bound what they allocate: protocol buffers, JSON, compression.

Start with `compression` and `protobuf`.
"""
