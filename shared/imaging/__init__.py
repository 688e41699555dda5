"""Images and masks: frames, Bayer demosaicing, resizing, codecs, labels and drawing.

Start with `frames`.
"""
