"""Sources of frames: bags, videos, folders of images, cameras.

Start with `source`, the contract, and `table`, the table of sources.
"""
