"""The number of bits that the values of 16-bit images use, given or measured, and their scaling to the full range."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shared.errors import SkylaneError
from shared.imaging.frames import Layout, Pixels

Bits = Literal["auto", "8", "10", "12", "14", "16"]

MEASURED_FRAMES = 8  # The first frames of a camera; always the same ones, whichever part of a source is played.

_BITS = (8, 10, 12, 14, 16)
_CLIPPING_BITS = (10, 12, 14)  # Not 8: 255 is also the id of unlabelled pixels.
_MIN_CLIPPED = 8  # Pixels of one frame; fewer may be defects of the sensor.
_MIN_VALUES = 8  # Different values; an image with fewer may be constant, or a mask.
_BELOW = 16  # Values just below the clipped one, each of which must be much rarer.
_CLIPPED_RATIO = 4
_LEFT_ALIGNED = 0x0F  # Bits that are 0 in every value if 12-bit values fill the upper bits.


@dataclass(frozen=True, slots=True)
class MeasuredBits:
    """The result of a measurement. If it is not certain, the bits are 16, so that no value is changed."""

    bits: int
    largest: int  # The largest value.
    is_certain: bool

    def __str__(self) -> str:
        return f"{self.bits} bits" + ("" if self.is_certain else f" (uncertain, largest value {self.largest})")


def measured_bits(images: Iterable[Pixels]) -> MeasuredBits | None:
    """Measures how many bits the values of a camera's 16-bit images use; None without any.

    An 8-bit image ends the measurement.

    Small values alone do not mean fewer bits, as the scene may be dark. Only clipping is evidence: many pixels have the
    largest value of 10, 12 or 14 bits, hardly any have the values just below it, and none has a higher one.
    """
    count = largest = used = 0
    clipped = set()
    for image in images:
        if image.dtype == np.uint8:
            break
        count += 1
        highest = int(image.max())
        if highest >> _CLIPPING_BITS[-1]:
            return MeasuredBits(16, highest, is_certain=True)
        largest = max(largest, highest)
        used |= int(np.bitwise_or.reduce(image, axis=None))
        if highest in {(1 << bits) - 1 for bits in _CLIPPING_BITS}:
            counts = np.bincount(image.reshape(-1))
            is_peak = counts[-1] >= max(_MIN_CLIPPED, _CLIPPED_RATIO * int(counts[-1 - _BELOW : -1].max()))
            if is_peak and np.count_nonzero(counts) >= _MIN_VALUES:
                clipped.add(highest)
    if not count:
        return None
    if largest in clipped:
        return MeasuredBits(largest.bit_length(), largest, is_certain=True)
    return MeasuredBits(16, largest, is_certain=not used & _LEFT_ALIGNED)


class BitDepth:
    """The bits of one camera's 16-bit images; scales them to the full range.

    A measured number is raised when a later frame has a higher value; it is never lowered.

    Args:
        camera: The camera, for messages.
        bits: The number of bits as configured.
        note: Called with each decision that was not given by the user.
    """

    def __init__(self, camera: str, bits: Bits, note: Callable[[str], None]) -> None:
        self._camera = camera
        self._note = note
        self._given = None if bits == "auto" else int(bits)
        self._measured: int | None = None

    def measure(self, images: Iterable[Pixels]) -> None:
        """Measures the bits of the camera's first images, if there are any and the bits are not given."""
        depth = measured_bits(images) if self._given is None else None
        if depth is None:
            return
        self._measured = depth.bits
        if not depth.is_certain:
            bits = max(12, _fitting(depth.largest))  # Later frames of a dark scene may have higher values.
            self._note(
                f"{self._camera}: the number of bits is uncertain, so the 16-bit values are not scaled: the largest of the first "
                f"frames is {depth.largest}; if the camera has {bits} bits, give --bits {bits}"
            )
        elif depth.bits < 16:
            self._note(
                f"{self._camera}: the values have {depth.bits} of 16 bits, as they are clipped at {depth.largest}, and are scaled "
                "to the full range; --bits 16 keeps them"
            )

    def scaled(self, pixels: Pixels, layout: Layout, index: int | None = None, declared: int | None = None) -> Pixels:
        """Returns the pixels of a frame in the full range of the layout's type.

        Args:
            pixels: uint8, which is returned as it is, or uint16 as recorded, also for an 8-bit layout.
            layout: The layout of the frame.
            index: The number of the frame, for messages; None if it is not known.
            declared: The bits that the encoding of the image names.

        Raises:
            SkylaneError: a value does not fit into the given or declared bits.
        """
        if pixels.dtype == np.uint8:
            return pixels
        fixed = self._given or declared
        if fixed is None and self._measured is None:
            self.measure([pixels])
        bits = fixed or self._measured or 16
        if bits < 16 and (largest := int(pixels.max())) >> bits:
            if fixed:
                raise SkylaneError(
                    f"its largest value {largest} does not fit into {bits} bits: give --bits {_fitting(largest)} or more"
                )
            bits = self._measured = _fitting(largest)
            frame = "a frame" if index is None else f"frame {index}"
            self._note(f"{self._camera}: {frame} has the value {largest}, so {bits} bits are used from this frame on")
        return full_range(pixels, layout, bits)


def full_range(pixels: Pixels, layout: Layout, bits: int = 16) -> Pixels:
    """Scales uint16 values of `bits` bits to the full range of the layout's type; returns uint8 pixels unchanged."""
    if pixels.dtype == np.uint8:
        return pixels
    if layout.dtype == np.uint8:
        return np.asarray(pixels >> (bits - 8), np.uint8)
    return pixels if bits == 16 else np.asarray(pixels << (16 - bits), np.uint16)


def _fitting(largest: int) -> int:
    return next(bits for bits in _BITS if not largest >> bits)
