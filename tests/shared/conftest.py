"""Hypothesis without its stopwatch: a test must not fail because the machine was busy."""

from hypothesis import settings

settings.register_profile("skylane")
settings.load_profile("skylane")
