"""Scores the outputs of recorded runs against the true labels of their ticks.

Start with `run_accuracy`; `tick_outputs` has the outputs of a run, `comparisons` compares them with the truth.
"""
