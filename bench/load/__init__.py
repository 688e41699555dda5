"""Load for benchmarks: many clients in one process, an echo of the broker, made-up runs.

Start with `load_clients`.
"""
