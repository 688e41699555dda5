"""Installs, starts, measures and stops the compared servers.

Start with `catalogue` and `server`.
"""
