"""Sources of frames: bags, videos, folders of images, cameras.

Start with `source`, the table of sources. The contract is `FrameSource` in `shared.imaging.frames`.
"""
