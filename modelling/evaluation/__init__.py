"""Evaluates a model on a bag with ground truth, by task.

Start with `dispatch`.
"""
