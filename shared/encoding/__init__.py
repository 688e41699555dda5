"""Bounded and validated encodings: MessagePack, Protocol Buffers, JSON, compression, and tensors of other protocols."""
