"""Reads the files of runs and checks their consistency.

Start with `run_log` and `audit`.
"""
