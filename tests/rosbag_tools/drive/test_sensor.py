import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosbag_tools.drive.sensor import Sensor, SensorLayoutError
from shared.imaging.frames import Layout

BAYER = [layout for layout in Layout if layout.is_bayer]
COLOUR = (200, 90, 40)


def flat(
    height: int = 64, width: int = 96, colour: tuple[int, int, int] = COLOUR
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A picture of one colour."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = colour
    return picture


@pytest.mark.parametrize("layout", BAYER)
def test_binning_a_flat_patch_gives_its_colour_back(layout: Layout) -> None:
    """A phase that is off by one swaps red and blue, which no later stage could notice."""
    mosaic = Sensor(1, layout, noise=0, vignetting=0, drift=0).capture(flat(), 0)
    seen: dict[str, list[float]] = {"r": [], "g": [], "b": []}
    for place, letter in enumerate(layout.bayer_pattern):
        row, column = divmod(place, 2)
        seen[letter].append(float(mosaic[row::2, column::2].mean()))
    scale = 257.0 if layout.dtype == np.uint16 else 1.0
    for letter, value in zip("rgb", COLOUR, strict=True):
        assert np.mean(seen[letter]) / scale == pytest.approx(value, abs=0.6)


@pytest.mark.parametrize("layout", BAYER)
def test_each_layout_has_its_dtype_and_size(layout: Layout) -> None:
    """The bag's encoding is written from the layout; the bytes must agree with it."""
    mosaic = Sensor(1, layout).capture(flat(), 0)
    assert mosaic.dtype == layout.dtype
    assert mosaic.shape == (64, 96)


def test_sixteen_bits_hold_twelve_over_the_full_range() -> None:
    """12-bit cameras leave the low bits empty and reach the top; drivers shift, and so must we."""
    sensor = Sensor(2, Layout.BAYER_RGGB16)
    bright = sensor.capture(flat(colour=(255, 255, 255)), 0)
    dark = sensor.capture(flat(colour=(0, 0, 0)), 0)
    assert not (bright & 0xF).any()
    assert bright.max() == 4095 << 4
    assert dark.min() == 0
    assert dark.max() < 2048


def test_the_same_seed_and_index_give_the_same_bytes() -> None:
    """A bag's hash stands in every manifest; it must be reproducible."""
    picture = flat()
    one, two = Sensor(7, Layout.BAYER_GRBG8), Sensor(7, Layout.BAYER_GRBG8)
    two.capture(picture, 3)
    assert one.capture(picture, 9).tobytes() == two.capture(picture, 9).tobytes()


def test_noise_differs_from_frame_to_frame_and_from_seed_to_seed() -> None:
    """Frozen noise would make a still scene bit-identical, which no camera does."""
    sensor, picture = Sensor(7, Layout.BAYER_RGGB8, drift=0), flat()
    assert not np.array_equal(sensor.capture(picture, 0), sensor.capture(picture, 1))
    other = Sensor(8, Layout.BAYER_RGGB8, drift=0)
    assert not np.array_equal(sensor.capture(picture, 0), other.capture(picture, 0))


def test_brighter_light_is_noisier() -> None:
    """Shot noise grows with the light; a constant noise would train a model on something else."""
    sensor = Sensor(7, Layout.BAYER_RGGB16, vignetting=0, drift=0)
    dim = sensor.capture(flat(colour=(20, 20, 20)), 0)
    lit = sensor.capture(flat(colour=(180, 180, 180)), 0)
    assert lit.std() > 1.5 * dim.std()


def test_corners_are_darker_than_the_middle() -> None:
    """Vignetting takes a quarter of the light from the very corner, none from the middle."""
    mosaic = Sensor(1, Layout.BAYER_RGGB8, noise=0, drift=0).capture(flat(201, 301, (200, 200, 200)), 0)
    assert mosaic[100, 150] == 200
    assert mosaic[0, 0] == pytest.approx(150, abs=1)


@given(seed=st.integers(0, 1000), index=st.integers(0, 10_000))
def test_exposure_drifts_slowly_within_its_bound(seed: int, index: int) -> None:
    """It wanders; it never jumps from one frame to the next."""
    sensor = Sensor(seed, Layout.BAYER_RGGB8)
    assert abs(sensor.exposure(index) - 1.0) <= 0.08
    assert abs(sensor.exposure(index + 1) - sensor.exposure(index)) < 0.003


def test_a_layout_that_is_not_bayer_is_refused() -> None:
    """`bag make --encoding rgb8` should say what there is instead."""
    with pytest.raises(SensorLayoutError, match=r"rgb8.*bayer_rggb8"):
        Sensor(1, Layout.RGB8)
