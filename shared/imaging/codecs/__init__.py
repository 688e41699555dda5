"""The codecs of images and masks, one plug-in each.

Start with `codec`, the contracts and the tables. `shared.imaging.image_codecs` and `mask_codecs` check every size first.
"""
