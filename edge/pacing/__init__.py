"""When frames of a source fall due, and the queue where due frames wait for the pipeline.

Start with `replay`.
"""
