"""The bits of 16-bit images."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shared.errors import SkylaneError
from shared.imaging.bit_depth import BitDepth, Bits, measured_bits
from shared.imaging.frames import Layout

Wide = npt.NDArray[np.uint16]


def scene(largest: int, *, scale: float = 600.0, seed: int = 0) -> Wide:
    """Returns the image of a street at night and its lamps, clipped at a value."""
    light = np.random.default_rng(seed).gamma(2.0, scale, (120, 160))
    return np.minimum(light, largest).astype(np.uint16)


def with_pixels(image: Wide, value: int, count: int) -> Wide:
    """Returns a copy in which some pixels have a value."""
    copy = image.copy()
    copy.reshape(-1)[:: image.size // count][:count] = value
    return copy


RAMP = np.tile(np.linspace(0, 4095, 64).astype(np.uint16), (64, 1))
NOISE = np.random.default_rng(0).integers(0, 4096, (480, 640)).astype(np.uint16)
MASK = np.repeat(np.array([[0, 4095]], np.uint16), 64, axis=0)


@pytest.mark.parametrize(
    ("images", "bits"),
    [
        ([RAMP], 12),
        ([scene(1023)], 10),
        ([scene(4095)], 12),
        ([scene(16383, scale=4000)], 14),
        ([scene(800), scene(4095)], 12),
        ([with_pixels(scene(800), 4095, 25)], 12),
        ([np.dstack([scene(4095)] * 3)], 12),
    ],
    ids=["ramp", "10", "12", "14", "second image", "small light", "colour"],
)
def test_clipped_values_show_the_bits(images: list[Wide], bits: int) -> None:
    """A sensor reports light that is too bright as its largest value, which no other cause does."""
    found = measured_bits(images)
    assert found is not None
    assert (found.bits, found.is_certain) == (bits, True)


@pytest.mark.parametrize(
    "images",
    [
        [scene(800)],
        [with_pixels(scene(800), 4095, 1)] * 8,
        [scene(4080)],
        [scene(4094)],
        [np.full((64, 64), 4095, np.uint16)],
        [MASK],
        [NOISE],
        [scene(4095), scene(9000, scale=2000)],
        [scene(255)],
    ],
    ids=["dark", "hot pixel", "4080", "4094", "constant", "mask", "even noise", "brighter later", "255"],
)
def test_a_dark_scene_does_not_pass_for_fewer_bits(images: list[Wide]) -> None:
    """Without evidence the values are kept, and the user is told."""
    found = measured_bits(images)
    assert found is not None
    assert (found.bits, found.is_certain) == (16, False)
    notes: list[str] = []
    depth = BitDepth("/cam", "auto", notes.append)
    depth.measure(images)
    assert depth.scaled(images[0], Layout.MONO16) is images[0]
    assert f"largest of the first frames is {found.largest}" in notes[0]
    bits = 12 if found.largest < 1 << 12 else 14  # A dark scene says nothing about the frames that follow.
    assert f"if the camera has {bits} bits, give --bits {bits}" in notes[0]


@pytest.mark.parametrize(
    "image", [scene(60000, scale=9000), scene(4095) << 4, scene(0)], ids=["16", "upper bits", "black"]
)
def test_values_that_use_the_upper_bits_are_kept_in_silence(image: Any) -> None:
    """There is nothing to decide."""
    notes: list[str] = []
    depth = BitDepth("/cam", "auto", notes.append)
    depth.measure([image])
    assert depth.scaled(image, Layout.MONO16) is image
    assert not notes


def test_measured_bits_only_grow() -> None:
    """A frame with more bits is not wrapped, and the user learns its number."""
    notes: list[str] = []
    depth = BitDepth("/cam", "auto", notes.append)
    depth.measure([scene(4095)])
    frames = [scene(4095), scene(9000, scale=2000), scene(4095)]
    scaled = [depth.scaled(frame, Layout.MONO16, index) for index, frame in enumerate(frames)]
    for frame, found, shift in zip(frames, scaled, (4, 2, 2), strict=True):
        np.testing.assert_array_equal(found, frame << shift)
    assert "12 of 16 bits" in notes[0]
    assert notes[1:] == ["/cam: frame 1 has the value 9000, so 14 bits are used from this frame on"]


@pytest.mark.parametrize(("bits", "declared"), [("10", None), ("auto", 10), ("10", 12)])
def test_values_above_the_given_bits_are_refused(bits: Bits, declared: int | None) -> None:
    """The user's number counts before that of the encoding, and the message names one that fits."""
    depth = BitDepth("/cam", bits, pytest.fail)
    assert int(depth.scaled(scene(1000), Layout.MONO16, declared=declared).max()) == 1000 << 6
    with pytest.raises(SkylaneError, match="largest value 3000 does not fit into 10 bits: give --bits 12"):
        depth.scaled(scene(3000), Layout.MONO16, declared=declared)


def test_colour_is_narrowed_from_its_bits() -> None:
    """The high byte of 12-bit values would have 16 levels."""
    colour = np.dstack([RAMP] * 3)
    narrowed = BitDepth("/cam", "12", pytest.fail).scaled(colour, Layout.RGB8)
    np.testing.assert_array_equal(narrowed, colour >> 4)
    full = BitDepth("/cam", "16", pytest.fail).scaled(colour, Layout.RGB8)
    np.testing.assert_array_equal(full, colour >> 8)
    assert full.dtype == narrowed.dtype == np.uint8
