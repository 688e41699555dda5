"""Trains the networks on frames of the synthetic drive.

Start with `dispatch`, which chooses the training for a recipe.
"""
