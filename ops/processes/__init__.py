"""Workers, vehicles and gateways as child processes of this machine, and workers without a model.

Start with `worker_process` and `child`.
"""
