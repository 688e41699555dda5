"""`skylane doctor`: checks of this machine, its files, the broker and the workers, each with a remedy.

Start with `check`, then read `machine` and `connection`.
"""
