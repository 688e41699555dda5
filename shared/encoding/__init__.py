"""Encodings of untrusted data, bounded and validated: MessagePack, protocol buffers, JSON, compression, tensors.

Start with `msgpack_reader` and `schema`.
"""
