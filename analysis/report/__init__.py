"""The report of a run, several runs or a study: one HTML page with tables and charts.

Start with `document`.
"""
