"""Tools of operators and researchers around vehicles and workers.

Start with `batch`, which runs a model over a library of bags.
"""
