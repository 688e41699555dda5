"""Sources of frames: bags, videos, folders of images, cameras.

Start with `source`, the contract and the table of sources.
"""
