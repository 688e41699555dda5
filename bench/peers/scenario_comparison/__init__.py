"""Runs all servers through the four scenarios of the comparison of 2022, in alternating rounds.

Start with `comparison`.
"""
