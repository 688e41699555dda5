"""The contracts of image codecs and mask codecs, and the tables of all of them."""

from functools import cache
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer
from shared.imaging.frames import Layout, Pixels
from shared.registry import Entry, PluginTable, failures_of, load, require

Mask = npt.NDArray[np.uint8]  # H×W class ids.

IMAGE_CODECS = PluginTable(
    "image codec",
    "skylane.codecs",
    Entry,
    {  # Keys are the names in messages.
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


class _CheckedCodec:
    """A codec of another distribution, whose results are checked. The last arguments of `decode` give the shape."""

    def __init__(self, plugin: str, codec: Any) -> None:
        self._plugin = plugin
        self._codec = codec

    def encode(self, *arguments: Any) -> Buffer:
        """See ImageCodec and MaskCodec."""
        with failures_of(self._plugin):
            data: Buffer = self._codec.encode(*arguments)
        require(self._plugin, "encoded data", data, "bytes", is_valid=isinstance(data, bytes | bytearray | memoryview))
        return data

    def decode(self, data: Buffer, *arguments: Any) -> Any:
        """See ImageCodec and MaskCodec."""
        with failures_of(self._plugin):
            pixels = self._codec.decode(data, *arguments)
        is_mask = not isinstance(arguments[0], Layout)
        dtype, shape = ("uint8", arguments) if is_mask else (arguments[0].dtype_name, tuple(arguments[1]))
        is_valid = isinstance(pixels, np.ndarray) and pixels.dtype == dtype and pixels.shape == shape
        require(self._plugin, "decoded pixels", pixels, f"an array of {dtype}, of shape {shape}", is_valid=is_valid)
        return pixels


def _built(kind: str, table: PluginTable[Entry], name: str) -> Any:
    codec = load(kind, table, name)()
    return _CheckedCodec(table.describe(name), codec) if table.is_external(name) else codec


@cache
def image_codec(name: str) -> ImageCodec:
    """Returns an image codec of the table; raises an UnknownNameError if it has none of that name."""
    return cast("ImageCodec", _built("image codec", IMAGE_CODECS, name))


@cache
def mask_codec(name: str) -> MaskCodec:
    """Returns a mask codec of the table; raises an UnknownNameError if it has none of that name."""
    return cast("MaskCodec", _built("mask codec", MASK_CODECS, name))
