"""Replay of a source: when each frame is due, and the queue in which it waits for the pipeline.

Start with `replay`.
"""
