"""Compares Skylane with other model servers that serve the same TensorFlow function.

Start with `cli`; `catalogue` lists the servers.
"""
