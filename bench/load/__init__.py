"""Load for benchmarks: playback of bags, many vehicles or gateway clients in one process, workers without a model.

Start with `playback`, `load_generator` and `null_worker`.
"""
