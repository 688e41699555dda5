"""Measures how reliable the results of two models are at each age: `skylane model tune-fusion`.

Start with `recording`, which runs both models on labelled drives, and `counts`, which makes the tables.
"""
