"""Studies: all combinations of chosen settings, each run several times in random order, written as tidy tables.

Start with `plan.study_plan` and `execution.runner`.
"""
