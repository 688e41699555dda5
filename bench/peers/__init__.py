"""Compares Skylane with other model servers that serve the same TensorFlow function.

Start with `cli`; `rig.catalogue` lists the servers.
"""
