"""The output of a batch: masks, tables of frames, and a manifest for each bag.

Start with `results`, which writes the results of one bag.
"""
