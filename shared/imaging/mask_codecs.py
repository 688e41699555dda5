"""Encoding and validated decoding of masks; the codecs themselves are in `built_in_codecs`."""

import numpy as np

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.codec import MASK_CODECS, Mask, mask_codec
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE

__all__ = ["MASK_CODECS", "Mask", "decode", "encode"]

_UINT8 = np.dtype(np.uint8)  # Comparing a dtype with np.uint8 itself is slow.


def encode(mask: Mask, codec: str) -> Buffer:
    """Encodes a mask of H×W uint8 class ids by a codec of `MASK_CODECS`.

    Raises:
        UnknownNameError: The codec is unknown.
        SkylaneError: The mask has another dtype or shape, or is too large.
    """
    if mask.dtype != _UINT8 or mask.ndim != 2:  # noqa: PLR2004  Rows and columns.
        raise SkylaneError(f"mask is {mask.dtype} of shape {mask.shape}: give uint8 class ids of shape height × width")
    _check_shape(*mask.shape)
    return mask_codec(codec).encode(np.ascontiguousarray(mask))


def decode(data: Buffer, codec: str, shape: tuple[int, int]) -> Mask:
    """Decodes a mask of a known shape to H×W uint8; read-only for `raw`, `lz4` and `zstd`. Checks every size before allocating memory.

    Raises:
        UnknownNameError: The codec is unknown.
        SkylaneError: The data is not a mask of this shape.
    """
    decoder = mask_codec(codec)
    _check_shape(*shape)
    try:
        return decoder.decode(data, *shape)
    except SkylaneError as error:
        raise SkylaneError(f"mask of {shape[0]}×{shape[1]}: {error}") from error


def _check_shape(height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise SkylaneError(f"mask is {height}×{width}: send sides from 1 to {MAX_SIDE} and at most {MAX_PIXELS} pixels")
