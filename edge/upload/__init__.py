"""`skylane send`: uploads image files to several workers and balances them by load.

Start with `cli` and `dispatcher`.
"""
