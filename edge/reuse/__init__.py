"""Frames that are not sent: the difference detector reuses results, and a local model answers.

Start with `step`, which decides about each frame; `opening` checks and opens what a run is configured to use. The
algorithms are in `shared.reuse`.
"""
