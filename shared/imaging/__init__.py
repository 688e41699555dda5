"""Images, masks and boxes: pixel layouts, demosaicing, resizing, codecs, labels and drawing.

Start with `frames` and `geometry`.
"""
