"""Reads the files of runs and checks them.

Start with `run_log` and `audit`.
"""
