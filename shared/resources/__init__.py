"""Samples CPU, memory, network traffic and GPU use of the nodes during a run.

Start with `sampler`.
"""
