"""The report of a run, of several runs or of a study: one HTML page, its tables and its charts.

Start with `document`.
"""
