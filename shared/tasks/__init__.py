"""Tasks: segmentation, classification, detection and raw tensors, one plug-in each.

Start with `shared.task`, the contract and the table of tasks.
"""
