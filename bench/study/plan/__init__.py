"""The plan of a study: its axes, scenarios, cells and the order of its runs.

Start with `study_plan`.
"""
