"""Runs the cells of a study: brokers, workers and vehicles of each run.

Start with `runner`.
"""
