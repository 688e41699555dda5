"""Runs the cells of a study with real brokers, workers and vehicles.

Start with `runner`.
"""
