"""What a vehicle knows of its workers (who is online, their clocks, response times, loads) and which one gets a frame.

Start with `worker_directory`; `dispatcher` is the contract of the choice; `edge.retrying` says which frames are sent again.
"""
