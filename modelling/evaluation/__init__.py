"""Evaluates a model on a bag with ground truth, by task.

Start with `evaluate`; `metrics` has the counts of each task, `streaming` scores them tick by tick.
"""
