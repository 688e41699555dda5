"""The output formats of a report: HTML page, charts, table files, JSON and terminal.

Start with `page`.
"""
