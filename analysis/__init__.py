"""What researchers use: reading logs, statistics, studies, the report, and whether offloading is worth it.

Start with `logs.run_log` and `report.document`.
"""
