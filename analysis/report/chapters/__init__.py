"""The chapters of a report, each a module that returns a `Chapter`.

Start with `run.stages`.
"""
