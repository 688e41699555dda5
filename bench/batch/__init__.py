"""`skylane bench batch`: what a batch over a library of bags costs beside its inference, and what it survives.

Start with `throughput`, which has the command.
"""
