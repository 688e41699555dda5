"""Renders the synthetic drive: images of a street as a camera on a car sees it, with ground truth.

Start with `scene` and `recording`. To add an object, place it in `world` (static) or `traffic` (moving), draw it in a module
of `objects`, and call that in `Painter` of `scene`.
"""
