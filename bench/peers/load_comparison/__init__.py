"""Measures all servers under the same closed-loop load, in alternating rounds.

Start with `comparison`.
"""
