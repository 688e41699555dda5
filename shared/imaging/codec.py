"""The contracts of image codecs and mask codecs, and the tables of all of them."""

from functools import cache
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer
from shared.imaging.frames import Layout, Pixels
from shared.registry import Entry, PluginTable, load

Mask = npt.NDArray[np.uint8]  # H×W class ids.

IMAGE_CODECS = PluginTable(
    "image codec",
    "skylane.codecs",
    Entry,
    {  # By the name in messages.
        "raw": Entry("shared.imaging.built_in_codecs:RawImages", "edge"),
        "jpeg": Entry("shared.imaging.built_in_codecs:JpegImages", "edge"),
        "png": Entry("shared.imaging.built_in_codecs:PngImages", "edge"),
        "lz4": Entry("shared.imaging.built_in_codecs:Lz4Images", "edge"),
        "zstd": Entry("shared.imaging.built_in_codecs:ZstdImages", "edge"),
    },
    prefix="image.",
)
MASK_CODECS = PluginTable(
    "mask codec",
    "skylane.codecs",
    Entry,
    {
        "raw": Entry("shared.imaging.built_in_codecs:RawMasks", "edge"),
        "png": Entry("shared.imaging.built_in_codecs:PngMasks", "edge"),
        "rle": Entry("shared.imaging.built_in_codecs:RleMasks", "edge"),
        "lz4": Entry("shared.imaging.built_in_codecs:Lz4Masks", "edge"),
        "zstd": Entry("shared.imaging.built_in_codecs:ZstdMasks", "edge"),
    },
    prefix="mask.",
)


class ImageCodec(Protocol):
    """A codec of images, lossless or not; thread-safe. A SkylaneError says why an image is refused."""

    def encode(self, pixels: Pixels, layout: Layout, quality: int) -> Buffer:
        """Encodes C-contiguous pixels; lossless codecs ignore `quality`, 1 to 100."""

    def decode(self, data: Buffer, layout: Layout, shape: tuple[int, ...]) -> Pixels:
        """Decodes an image to pixels of its layout and shape; allocates no memory for data of another size."""


class MaskCodec(Protocol):
    """A lossless codec of masks; thread-safe. A SkylaneError says why a mask is refused."""

    def encode(self, mask: Mask) -> Buffer:
        """Encodes a C-contiguous mask."""

    def decode(self, data: Buffer, height: int, width: int) -> Mask:
        """Decodes a mask of a known size; allocates no memory for data of another size."""


@cache
def image_codec(name: str) -> ImageCodec:
    """Returns an image codec of the table; raises an UnknownNameError if it has none of that name."""
    return cast("ImageCodec", load("image codec", IMAGE_CODECS, name)())


@cache
def mask_codec(name: str) -> MaskCodec:
    """Returns a mask codec of the table; raises an UnknownNameError if it has none of that name."""
    return cast("MaskCodec", load("mask codec", MASK_CODECS, name)())
