"""The path of a frame through the worker: admission, decoding, batching, postprocessing, reply.

Start with `request` and `admission`.
"""
