"""Runs things: the broker, the demo, studies, batches, an emulated link, nodes as child processes.

Start with `broker.broker` and `study.runner`.
"""
