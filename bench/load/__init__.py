"""Load for benchmarks: playback of bags, many vehicles in one process, workers without a model.

Start with `playback`, `load_clients` and `null_worker`.
"""
