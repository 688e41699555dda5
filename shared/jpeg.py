"""JPEG pictures, encoded and decoded by libjpeg-turbo itself: what OpenCV does with the same library, in less time.

OpenCV hands it one row at a time. What is odd about a picture that is to be decoded, such as bytes that belong to nothing, is
for OpenCV to judge.

A large picture is encoded in bands, each by another core, and what they gave is joined by restart markers (ITU-T T.81, B.2.1
and E.1.4): every decoder reads it, and its pixels are those of the picture encoded in one piece.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from simplejpeg import decode_jpeg, encode_jpeg

from shared.call_threads import CallThreads
from shared.compression import Buffer
from shared.machine import usable_cores

Colours = Literal["RGB", "BGR", "GRAY"]

_BAND_PIXELS = 1 << 16  # The fewest that are worth another thread's waking.
_BANDS = 4
_MCU_SIDE = {"RGB": 16, "BGR": 16, "GRAY": 8}  # Pixels of a minimum coded unit, with colour at half the resolution.
_LONGEST_INTERVAL = 0xFFFF  # MCUs between two restart markers.
_LONGEST_SIDE = 65_500  # Pixels, that libjpeg-turbo takes.
_SOF0, _RST0, _EOI, _SOS, _DRI = 0xC0, 0xD0, b"\xff\xd9", 0xDA, b"\xff\xdd\x00\x04"
_RESTARTS = 8  # RST0 to RST7, in turn.

_helpers = CallThreads("jpeg", max(1, min(usable_cores(), _BANDS) - 1))


def encode(pixels: npt.NDArray[np.uint8], colours: Colours, quality: int, bands: int | None = None) -> Buffer:
    """A baseline JPEG of a picture, H×W×3 or of "GRAY" H×W; colour at half the resolution (4:2:0).

    Below quality 96 its cosines are libjpeg's fast ones, which at 85 cost a hundredth of a decibel. `bands`: in so many, or
    fewer; None: as its size and this machine's cores suggest. Other threads run meanwhile.

    Raises:
        ValueError: libjpeg-turbo does not take it.
    """
    height, width = pixels.shape[:2]
    side = _MCU_SIDE[colours]
    if bands is None:
        bands = min(usable_cores(), _BANDS, height * width // _BAND_PIXELS)
    rows = side * -(-height // (side * max(1, bands)))
    interval = rows // side * -(-width // side)
    of_band = partial(_whole, colours=colours, quality=quality)
    pixels = pixels.reshape(height, width, -1)
    if rows >= height or height > _LONGEST_SIDE or interval > _LONGEST_INTERVAL:
        return of_band(pixels)
    later = [pixels[start : start + rows] for start in range(rows, height, rows)]
    try:
        begun = [_helpers.submit(of_band, band) for band in later]
    except RuntimeError:  # No thread can be begun.
        return of_band(pixels)
    encoded = [of_band(pixels[:rows])]
    # What nobody has begun with yet, as there are more cameras than cores, waits for nobody.
    encoded += [of_band(band) if each.cancel() else each.result() for each, band in zip(begun, later, strict=True)]
    return _joined(encoded, height, interval)


def _whole(pixels: npt.NDArray[np.uint8], colours: Colours, quality: int) -> bytes:
    subsampling = "Gray" if colours == "GRAY" else "420"
    data: bytes = encode_jpeg(pixels, quality, colours, subsampling)
    return data


def _joined(bands: Sequence[bytes], height: int, interval: int) -> bytearray:
    """One picture of bands that were encoded alike, of `interval` MCUs each but for the last."""
    first = bands[0]
    place = size_at = 2  # Behind SOI, which has no length.
    while (marker := first[place + 1]) != _SOS:
        if marker == _SOF0:
            size_at = place + 5
        place += 2 + int.from_bytes(first[place + 2 : place + 4])
    scan_at = place + 2 + int.from_bytes(first[place + 2 : place + 4])
    joined = bytearray(first[:place])
    joined[size_at : size_at + 2] = height.to_bytes(2)
    joined += _DRI + interval.to_bytes(2) + first[place : -len(_EOI)]
    for number, band in enumerate(bands[1:]):
        joined += bytes((0xFF, _RST0 + number % _RESTARTS))
        joined += memoryview(band)[scan_at : -len(_EOI)]
    return joined + _EOI


def decode(data: Buffer, colours: Colours, height: int, width: int) -> npt.NDArray[np.uint8] | None:
    """The picture, uint8, H×W×3 or of "GRAY" H×W, as stored, whatever its EXIF says; None: let OpenCV look at it.

    Where the decoder reads a larger size than was found out before, nothing is decoded, and no memory taken for it. Other
    threads run meanwhile.
    """
    room = np.empty(height * width * (1 if colours == "GRAY" else 3), np.uint8)
    try:
        picture = decode_jpeg(data, colours, buffer=room)
    except ValueError:
        return None
    return (
        room.reshape(picture.shape[:2] if colours == "GRAY" else picture.shape) if picture.size == room.size else None
    )
