"""Output formats of a report: HTML page, charts, tables as files, terminal.

Start with `page`.
"""
