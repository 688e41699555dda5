"""The deployment that a fault scenario runs on: broker, workers, vehicles and links as real processes.

Start with `rig` and `site`.
"""
