"""Baselines: reproductions of how the systems we come from did it, written fresh and run by the bench alone."""
