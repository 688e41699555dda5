"""Fault scenarios: each breaks a real deployment in one way and checks that no frame is lost uncounted.

Start with `catalogue` (all scenarios) and `scenario` (what a scenario is).
"""
