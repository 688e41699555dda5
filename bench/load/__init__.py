"""Load for benchmarks: many vehicles or gateway clients in one process, and workers without a model.

Start with `load_generator` and `null_worker`.
"""
