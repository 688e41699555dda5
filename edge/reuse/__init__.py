"""Answers frames at the vehicle: the gate reuses results of similar frames, and a local model computes results.

Start with `step`, which decides about each frame; `opening` checks and opens the configured parts. The
algorithms are in `shared.reuse`.
"""
