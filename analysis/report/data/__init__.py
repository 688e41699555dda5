"""The data of a report, read from the files of runs and studies.

Start with `report_input`.
"""
