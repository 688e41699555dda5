"""`skylane batch`: runs a model over every bag of a library, and writes masks and one table of label shares.

Start with `run`, which plans and completes a batch, then `steps`, what happens to each frame, and `executor`, the contract
of what runs the steps on one machine or many.
"""
