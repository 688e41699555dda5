"""Measures how reliable the results of two models are at each age: `skylane model tune-fusion`.

Start with `recording`, which runs both models on labelled drives, and `masks`, which makes the table of a segmentation.
"""
