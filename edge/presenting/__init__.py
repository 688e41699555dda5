"""Presenting: what the vehicle can act on now, from results that are right for the past.

Read `presenter.py` first. `presentation.py` runs a presenter beside the pipeline.
"""
