"""The codec `jpeg`: baseline JPEG with 4:2:0 colour subsampling, the only lossy codec."""

import numpy as np

from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.codecs.opencv_files import decode_file, encode_file
from shared.imaging.frames import Layout, Pixels
from shared.imaging.opencv import cv2

_JPEG_SIDE = 65_500  # Largest side that libjpeg-turbo writes, pixels.


class JpegImages:
    """Files of JPEG; not for Bayer patterns or 16 bits."""

    def encode(self, pixels: Pixels, layout: Layout, quality: int) -> Buffer:
        """See ImageCodec."""
        _check(layout)
        if max(pixels.shape) > _JPEG_SIDE:
            raise SkylaneError(f"its sides may have {_JPEG_SIDE} pixels at most in a jpeg, not {max(pixels.shape)}")
        subsampling = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420)
        return encode_file(".jpg", pixels, layout, [cv2.IMWRITE_JPEG_QUALITY, quality, *subsampling])

    def decode(self, data: Buffer, layout: Layout, shape: tuple[int, ...]) -> Pixels:
        """See ImageCodec."""
        _check(layout)
        return decode_file("jpeg", data, layout, shape)


def _check(layout: Layout) -> None:
    if layout.is_bayer:
        raise SkylaneError("jpeg would mix the colours of the pattern: choose png, lz4, zstd or raw")
    if layout.dtype != np.uint8:
        raise SkylaneError("jpeg supports only 8 bits, not 16: choose png, lz4, zstd or raw")
