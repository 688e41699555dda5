import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.bayer import DEMOSAIC_METHODS, to_colour
from shared.imaging.frames import Layout, Pixels

BAYER_LAYOUTS = [layout for layout in Layout if layout.is_bayer]
COLOUR_LAYOUTS = [Layout.RGB8, Layout.BGR8]
CASES = [
    (method, layout)
    for method in DEMOSAIC_METHODS
    for layout in BAYER_LAYOUTS
    if (method, layout.dtype.itemsize) != ("vng", 2)
]
INTERPOLATING = [method for method in DEMOSAIC_METHODS if method != "binning"]

Image = npt.NDArray[np.uint8]


def mosaicked(rgb: Image, layout: Layout) -> Pixels:
    """Returns the sensor values of an RGB image (H×W×3 uint8) for the pattern of a layout."""
    sensor = np.empty(rgb.shape[:2], layout.dtype)
    for position, colour in enumerate(layout.bayer_pattern):
        row, column = divmod(position, 2)
        sensor[row::2, column::2] = rgb[row::2, column::2, "rgb".index(colour)]
    return sensor if layout.dtype == np.uint8 else sensor * np.uint16(257)


def psnr(image: Image, truth: Image) -> float:
    """Returns the peak signal-to-noise ratio in decibels."""
    return float(10 * np.log10(255**2 / np.mean((image.astype(np.float64) - truth) ** 2)))


def expected_image(method: str, rgb: Image) -> Image:
    """Returns the image that a method should approximate: the original, or its 2×2 means for binning."""
    if method != "binning":
        return rgb
    return np.asarray(rgb.reshape(rgb.shape[0] // 2, 2, rgb.shape[1] // 2, 2, 3).mean(axis=(1, 3)).round(), np.uint8)


@pytest.mark.parametrize("target", COLOUR_LAYOUTS)
@pytest.mark.parametrize(("method", "layout"), CASES)
def test_uniform_colour_is_reconstructed_exactly(method: str, layout: Layout, target: Layout) -> None:
    """A wrong phase or swapped colours show in a flat patch; they cost up to 20 points of accuracy."""
    colour = (200, 120, 30)
    rgb = np.full((20, 28, 3), colour, np.uint8)
    result = to_colour(mosaicked(rgb, layout), layout, target, method)
    expected = colour if target is Layout.RGB8 else colour[::-1]
    assert result.dtype == np.uint8
    assert result.shape == expected_image(method, rgb).shape
    assert (result == expected).all()


@pytest.mark.parametrize(("method", "layout"), CASES)
def test_smooth_gradient_is_preserved(method: str, layout: Layout) -> None:
    """A missing value is nearly the mean of its neighbours if the colour changes slowly."""
    rows, columns = np.mgrid[0:64, 0:96]
    rgb = np.stack((40 + columns, 60 + rows, 200 - columns), axis=-1).astype(np.uint8)
    result = to_colour(mosaicked(rgb, layout), layout, Layout.RGB8, method)
    error = np.abs(result.astype(int) - expected_image(method, rgb))[4:-4, 4:-4]
    assert error.max() <= 2


@pytest.mark.parametrize("layout", [layout for layout in BAYER_LAYOUTS if layout.dtype == np.uint8])
@given(sensor=hnp.arrays(np.uint8, (6, 8)))
@settings(max_examples=30)
def test_bilinear_is_the_mean_of_the_neighbours(layout: Layout, sensor: Image) -> None:
    """Checks the definition on arbitrary values."""
    result = to_colour(sensor, layout, Layout.RGB8, "bilinear")
    pattern = np.array(list(layout.bayer_pattern)).reshape(2, 2)
    colours = np.tile(pattern, (3, 4))
    for row, column in np.ndindex(4, 6):
        window = sensor[row : row + 3, column : column + 3].astype(np.float64)
        around = colours[row : row + 3, column : column + 3]
        centre = around[1, 1]
        for channel, colour in enumerate("rgb"):
            near = window[around == colour].mean() if colour != centre else window[1, 1]
            assert abs(result[row + 1, column + 1, channel] - near) <= 0.5


def test_edge_aware_is_better_than_bilinear_at_edges() -> None:
    """Following edges is the purpose of the method."""
    rgb = np.full((64, 64, 3), 40, np.uint8)
    rgb[:, 30:33] = 220
    sensor = mosaicked(rgb, Layout.BAYER_RGGB8)
    quality = {
        method: psnr(to_colour(sensor, Layout.BAYER_RGGB8, Layout.RGB8, method), rgb)
        for method in ("bilinear", "edge-aware", "vng")
    }
    assert quality["bilinear"] + 0.5 < quality["edge-aware"] < quality["vng"]


@pytest.mark.parametrize("layout", BAYER_LAYOUTS)
@given(data=st.data())
@settings(max_examples=25)
def test_binning_uses_only_measured_values(layout: Layout, data: st.DataObject) -> None:
    """Red and blue are sensor values, and green is the mean of two."""
    height, width = data.draw(st.integers(1, 150)) * 2, data.draw(st.integers(1, 9)) * 2
    sensor = data.draw(hnp.arrays(layout.dtype, (height, width)))
    result = to_colour(sensor, layout, Layout.RGB8, "binning")
    shift = 0 if layout.dtype == np.uint8 else 8
    planes: dict[str, list[Pixels]] = {"r": [], "g": [], "b": []}
    for position, colour in enumerate(layout.bayer_pattern):
        planes[colour].append(sensor[position // 2 :: 2, position % 2 :: 2])
    assert (result[..., 0] == planes["r"][0] >> shift).all()
    assert (result[..., 2] == planes["b"][0] >> shift).all()
    mean = (planes["g"][0].astype(np.float64) + planes["g"][1]) / 2
    assert (np.abs(result[..., 1] - (mean if shift == 0 else np.floor(mean / 256))) <= (0.5 if shift == 0 else 1)).all()


def test_binning_of_a_full_sensor_has_no_seams() -> None:
    """1936×1216 to 968×608 is the vehicle's usual case; it is processed in blocks of rows."""
    sensor = np.random.default_rng(3).integers(0, 256, (1216, 1936), dtype=np.uint8)
    result = to_colour(sensor, Layout.BAYER_RGGB8, Layout.BGR8, "binning")
    assert result.shape == (608, 968, 3)
    assert (result[..., 2] == sensor[::2, ::2]).all()
    assert (result[..., 0] == sensor[1::2, 1::2]).all()


@pytest.mark.parametrize("layout", [layout for layout in BAYER_LAYOUTS if layout.dtype == np.uint16])
def test_vng_rejects_16_bit_layouts(layout: Layout) -> None:
    """OpenCV's VNG supports 8 bits only; the error names the alternatives."""
    with pytest.raises(SkylaneError, match=r"8 bits.*choose edge-aware or bilinear"):
        to_colour(np.zeros((8, 8), np.uint16), layout, Layout.RGB8, "vng")


@pytest.mark.parametrize("method", DEMOSAIC_METHODS)
@pytest.mark.parametrize("shape", [(7, 8), (8, 7), (0, 8)])
def test_odd_side_is_rejected(method: str, shape: tuple[int, int]) -> None:
    """Half a cell has no colour."""
    with pytest.raises(SkylaneError, match="even sides"):
        to_colour(np.zeros(shape, np.uint8), Layout.BAYER_GRBG8, Layout.RGB8, method)


@pytest.mark.parametrize("method", INTERPOLATING)
def test_too_small_image_is_rejected(method: str) -> None:
    """OpenCV would return black."""
    with pytest.raises(SkylaneError, match="4×4"):
        to_colour(np.full((2, 8), 200, np.uint8), Layout.BAYER_GRBG8, Layout.RGB8, method)


def test_unknown_method_is_rejected_with_a_suggestion() -> None:
    """A misspelt method gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="bilinear"):
        to_colour(np.zeros((8, 8), np.uint8), Layout.MONO8, Layout.RGB8, "bilinaer")


@pytest.mark.parametrize("target", COLOUR_LAYOUTS)
def test_mono_becomes_three_equal_channels(target: Layout) -> None:
    """A grey camera can feed a colour model."""
    mono = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert (to_colour(mono, Layout.MONO8, target, "bilinear") == mono[..., None]).all()
    assert (to_colour(mono.astype(np.uint16) * 256 + 99, Layout.MONO16, target, "bilinear") == mono[..., None]).all()


def test_colour_is_copied_only_to_change_its_order() -> None:
    """An image already in the model's order costs nothing."""
    image = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert to_colour(image, Layout.RGB8, Layout.RGB8, "bilinear") is image
    assert to_colour(image, Layout.BGR8, Layout.BGR8, "bilinear") is image
    assert (to_colour(image, Layout.RGB8, Layout.BGR8, "bilinear") == image[..., ::-1]).all()
    assert (to_colour(image, Layout.BGR8, Layout.RGB8, "bilinear") == image[..., ::-1]).all()
