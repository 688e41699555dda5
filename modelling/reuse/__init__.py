"""Finds and judges the thresholds of the difference detector and the cascade: `skylane model tune-gate`.

Start with `replay`, which runs both models once on each frame, and `search`, which then simulates vehicles with many
thresholds and chooses some.
"""
