"""Training of the weather classifier and the object detector.

Start with `scene_training`.
"""
