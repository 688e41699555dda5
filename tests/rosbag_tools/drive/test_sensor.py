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
    """Returns an image of one colour."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = colour
    return image


@pytest.mark.parametrize("layout", BAYER)
def test_the_mosaic_of_a_uniform_image_has_its_colour_in_each_channel(layout: Layout) -> None:
    """A Bayer order that is off by one swaps red and blue, which no later stage can detect."""
    mosaic = Sensor(1, layout, noise=0, vignetting=0, drift=0).capture(flat(), 0)
    assert (mosaic.dtype, mosaic.shape) == (layout.dtype, (64, 96))
    means: dict[str, list[float]] = {"r": [], "g": [], "b": []}
    for place, letter in enumerate(layout.bayer_pattern):
        row, column = divmod(place, 2)
        means[letter].append(float(mosaic[row::2, column::2].mean()))
    scale = 257.0 if layout.dtype == np.uint16 else 1.0
    for letter, value in zip("rgb", COLOUR, strict=True):
        assert np.mean(means[letter]) / scale == pytest.approx(value, abs=0.6)


def test_16_bit_layouts_contain_12_bit_values_in_the_high_bits() -> None:
    """Drivers of 12-bit cameras shift the values by four bits, so that white is near the maximum."""
    sensor = Sensor(2, Layout.BAYER_RGGB16)
    bright = sensor.capture(flat(colour=(255, 255, 255)), 0)
    dark = sensor.capture(flat(colour=(0, 0, 0)), 0)
    assert not (bright & 0xF).any()
    assert bright.max() == 4095 << 4
    assert dark.min() == 0
    assert dark.max() < 2048


def test_the_same_seed_and_index_give_the_same_bytes() -> None:
    """The hash of a bag is in every manifest, so the bag must be reproducible."""
    image = flat()
    first, second = Sensor(7, Layout.BAYER_GRBG8), Sensor(7, Layout.BAYER_GRBG8)
    second.capture(image, 3)
    assert first.capture(image, 9).tobytes() == second.capture(image, 9).tobytes()


def test_noise_differs_between_frames_and_between_seeds() -> None:
    """With constant noise, two frames of a static scene would be identical, unlike those of a camera."""
    sensor, image = Sensor(7, Layout.BAYER_RGGB8, drift=0), flat()
    assert not np.array_equal(sensor.capture(image, 0), sensor.capture(image, 1))
    other = Sensor(8, Layout.BAYER_RGGB8, drift=0)
    assert not np.array_equal(sensor.capture(image, 0), other.capture(image, 0))


def test_brighter_light_is_noisier() -> None:
    """Shot noise grows with the light; a model trained with constant noise would not fit a real sensor."""
    sensor = Sensor(7, Layout.BAYER_RGGB16, vignetting=0, drift=0)
    dim = sensor.capture(flat(colour=(20, 20, 20)), 0)
    lit = sensor.capture(flat(colour=(180, 180, 180)), 0)
    assert lit.std() > 1.5 * dim.std()


def test_corners_are_darker_than_the_middle() -> None:
    """Vignetting reduces the light by a quarter in the corner, and not at all in the middle."""
    mosaic = Sensor(1, Layout.BAYER_RGGB8, noise=0, drift=0).capture(flat(201, 301, (200, 200, 200)), 0)
    assert mosaic[100, 150] == 200
    assert mosaic[0, 0] == pytest.approx(150, abs=1)


@given(seed=st.integers(0, 1000), index=st.integers(0, 10_000))
def test_exposure_drifts_slowly_within_its_bound(seed: int, index: int) -> None:
    """The exposure changes by less than 0.3 % between consecutive frames."""
    sensor = Sensor(seed, Layout.BAYER_RGGB8)
    assert abs(sensor.exposure(index) - 1.0) <= 0.08
    assert abs(sensor.exposure(index + 1) - sensor.exposure(index)) < 0.003


def test_a_layout_that_is_not_bayer_is_refused() -> None:
    """The error lists the supported layouts."""
    with pytest.raises(SensorLayoutError, match=r"rgb8.*bayer_rggb8"):
        Sensor(1, Layout.RGB8)
