"""The workers of a vehicle: which are online, their clocks, response times and loads, and the choice of a worker.

Start with `worker_directory`; `dispatcher` has the contract of the choice. `edge.retrying` plans retries.
"""
