"""What a vehicle knows of its workers: who is online, their clocks, response times, loads and liveness.

Start with `worker_directory`.
"""
