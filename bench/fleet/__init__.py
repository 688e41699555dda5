"""`python -m bench fleet`: many simulated vehicles in one process against several worker processes.

Start with `fleet_bench`, which has the command; `fleet_run` drives one run, and `vehicle` is one session of it.
"""
