"""The files of a run: latency log, journal and its repair, manifest, and the table of latencies by stage.

Start with `latency_log`.
"""
