"""Sources of frames: bags, videos, folders of images, cameras.

Start with `source`, which has the contract and the table.
"""
