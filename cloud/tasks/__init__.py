"""Postprocessing by task: segmentation, classification, detection, raw tensors.

Start with `task`, the contract and the table of tasks.
"""
