"""Studies: a matrix of settings, each run several times in random order, written as tidy tables.

Start with `plan.plan` and `execution.runner`.
"""
