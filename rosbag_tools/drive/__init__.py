"""Renders the synthetic drive: images as a camera on a car would see them, with ground truth.

Start with `scene` and `recording`.
"""
