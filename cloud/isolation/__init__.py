"""Runs an engine in a separate process, so that a crash, a hang or a memory leak does not affect the worker.

Start with `engine` (worker side) and `engine_process` (child side).
"""
