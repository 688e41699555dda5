"""Demosaicing against pictures whose true colours are known."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import UnknownNameError
from shared.imaging.bayer import DEMOSAIC_METHODS, DemosaicError, to_colour
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

Picture = npt.NDArray[np.uint8]


def mosaicked(rgb: Picture, layout: Layout) -> Pixels:
    """What a sensor with this pattern would have counted of a picture (H×W×3 uint8, RGB)."""
    sensor = np.empty(rgb.shape[:2], layout.dtype)
    for place, colour in enumerate(layout.bayer_pattern):
        row, column = divmod(place, 2)
        sensor[row::2, column::2] = rgb[row::2, column::2, "rgb".index(colour)]
    return sensor if layout.dtype == np.uint8 else sensor * np.uint16(257)


def street() -> Picture:
    """Something like a street, 128×192: sky, road, a red and a blue car, a tree's texture, slanted edges."""
    rows, columns = np.mgrid[0:128, 0:192].astype(np.float64)
    picture = np.empty((128, 192, 3))
    picture[:] = np.array([90, 140, 215])[None, None] - rows[..., None] * 0.3
    road = rows > 64 + 0.1 * columns
    picture[road] = [95, 90, 100]
    picture[road & (np.abs(columns - 90 - (rows - 64) * 0.7) < 3)] = [240, 235, 220]
    picture[(np.abs(rows - 84) < 14) & (np.abs(columns - 46) < 22)] = [190, 25, 30]
    picture[(np.abs(rows - 90) < 10) & (np.abs(columns - 140) < 26)] = [20, 40, 170]
    tree = (rows - 40) ** 2 + (columns - 150) ** 2 < 700
    leaves = 30 * np.sin(rows / 2.3) * np.cos(columns / 3.1)
    picture[tree] = (np.array([60, 120, 40])[None, None] + leaves[..., None])[tree]
    return np.clip(picture, 0, 255).astype(np.uint8)


def psnr(picture: Picture, truth: Picture) -> float:
    """Peak signal-to-noise ratio in decibels."""
    return float(10 * np.log10(255**2 / np.mean((picture.astype(np.float64) - truth) ** 2)))


def truth_for(method: str, rgb: Picture) -> Picture:
    """The picture a method should come to: the whole one, or its 2×2 means."""
    if method != "binning":
        return rgb
    return np.asarray(rgb.reshape(rgb.shape[0] // 2, 2, rgb.shape[1] // 2, 2, 3).mean(axis=(1, 3)).round(), np.uint8)


@pytest.mark.parametrize("target", COLOUR_LAYOUTS)
@pytest.mark.parametrize(("method", "layout"), CASES)
def test_flat_colour_comes_back_exactly(method: str, layout: Layout, target: Layout) -> None:
    """A wrong phase or swapped colours cannot hide in a flat patch, and costs up to 20 points of accuracy."""
    colour = (200, 120, 30)
    rgb = np.full((20, 28, 3), colour, np.uint8)
    result = to_colour(mosaicked(rgb, layout), layout, target, method)
    expected = colour if target is Layout.RGB8 else colour[::-1]
    assert result.dtype == np.uint8
    assert result.shape == truth_for(method, rgb).shape
    assert (result == expected).all()


@pytest.mark.parametrize(("method", "layout"), CASES)
def test_colour_patches_come_back_exactly_inside(method: str, layout: Layout) -> None:
    """Neighbouring colours may mix at their border only; there the pattern is two pixels wide."""
    rgb = np.zeros((48, 48, 3), np.uint8)
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (250, 200, 10)]
    for index, colour in enumerate(colours):
        row, column = divmod(index, 2)
        rgb[row * 24 : row * 24 + 24, column * 24 : column * 24 + 24] = colour
    result = to_colour(mosaicked(rgb, layout), layout, Layout.RGB8, method)
    side = result.shape[0] // 2
    for index, colour in enumerate(colours):
        row, column = divmod(index, 2)
        patch = result[row * side + 4 : row * side + side - 4, column * side + 4 : column * side + side - 4]
        assert (patch == colour).all()


@pytest.mark.parametrize(("method", "layout"), CASES)
def test_smooth_gradient_is_kept(method: str, layout: Layout) -> None:
    """A sky must stay a sky: where light changes slowly, a missing colour is nearly its neighbours' mean."""
    rows, columns = np.mgrid[0:64, 0:96]
    rgb = np.stack((40 + columns, 60 + rows, 200 - columns), axis=-1).astype(np.uint8)
    result = to_colour(mosaicked(rgb, layout), layout, Layout.RGB8, method)
    error = np.abs(result.astype(int) - truth_for(method, rgb))[4:-4, 4:-4]
    assert error.max() <= 2


@pytest.mark.parametrize("layout", [layout for layout in BAYER_LAYOUTS if layout.dtype == np.uint8])
@given(sensor=hnp.arrays(np.uint8, (6, 8)))
@settings(max_examples=30)
def test_bilinear_is_the_mean_of_the_neighbours(layout: Layout, sensor: Picture) -> None:
    """The method's own definition, on any numbers: a library that did something else under its name would show."""
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


def test_edge_aware_follows_an_edge_better_than_bilinear() -> None:
    """That is what a user chooses it for; under the same name as bilinear nobody would notice it missing."""
    rgb = np.full((64, 64, 3), 40, np.uint8)
    rgb[:, 30:33] = 220
    sensor = mosaicked(rgb, Layout.BAYER_RGGB8)
    figures = {
        method: psnr(to_colour(sensor, Layout.BAYER_RGGB8, Layout.RGB8, method), rgb)
        for method in ("bilinear", "edge-aware", "vng")
    }
    assert figures["bilinear"] + 0.5 < figures["edge-aware"] < figures["vng"]


@pytest.mark.parametrize(("method", "layout"), CASES)
def test_right_colours_and_phase_are_clearly_better_than_wrong_ones(method: str, layout: Layout) -> None:
    """The two classic mistakes, red for blue and a pattern off by one, must show in the figure."""
    rgb = street()
    sensor = mosaicked(rgb, layout)
    truth = truth_for(method, rgb)
    right = psnr(to_colour(sensor, layout, Layout.RGB8, method), truth)
    swapped = psnr(to_colour(sensor, layout, Layout.BGR8, method), truth)
    others = [other for other in BAYER_LAYOUTS if other is not layout and other.dtype == layout.dtype]
    wrong_phase = max(psnr(to_colour(sensor, other, Layout.RGB8, method), truth) for other in others)
    assert right > 24
    assert right > swapped + 7
    assert right > wrong_phase + 3


@pytest.mark.parametrize("layout", BAYER_LAYOUTS)
@given(data=st.data())
@settings(max_examples=25)
def test_binning_makes_up_no_colour(layout: Layout, data: st.DataObject) -> None:
    """Its red and blue are the sensor's own numbers and its green their mean, whatever they are."""
    height, width = data.draw(st.integers(1, 150)) * 2, data.draw(st.integers(1, 9)) * 2
    sensor = data.draw(hnp.arrays(layout.dtype, (height, width)))
    result = to_colour(sensor, layout, Layout.RGB8, "binning")
    shift = 0 if layout.dtype == np.uint8 else 8
    planes: dict[str, list[Pixels]] = {"r": [], "g": [], "b": []}
    for place, colour in enumerate(layout.bayer_pattern):
        planes[colour].append(sensor[place // 2 :: 2, place % 2 :: 2])
    assert (result[..., 0] == planes["r"][0] >> shift).all()
    assert (result[..., 2] == planes["b"][0] >> shift).all()
    mean = (planes["g"][0].astype(np.float64) + planes["g"][1]) / 2
    assert (np.abs(result[..., 1] - (mean if shift == 0 else np.floor(mean / 256))) <= (0.5 if shift == 0 else 1)).all()


def test_binning_serves_a_whole_sensor() -> None:
    """1936×1216 to 968×608 is the vehicle's hot path; it is worked in bands that must leave no seam."""
    sensor = np.random.default_rng(3).integers(0, 256, (1216, 1936), dtype=np.uint8)
    result = to_colour(sensor, Layout.BAYER_RGGB8, Layout.BGR8, "binning")
    assert result.shape == (608, 968, 3)
    assert (result[..., 2] == sensor[::2, ::2]).all()
    assert (result[..., 0] == sensor[1::2, 1::2]).all()


@pytest.mark.parametrize("layout", [layout for layout in BAYER_LAYOUTS if layout.dtype == np.uint16])
def test_vng_refuses_16_bit_and_says_why(layout: Layout) -> None:
    """OpenCV's VNG reads 8 bit only; a user must learn that from us and be told what works."""
    with pytest.raises(DemosaicError, match=r"8 bits.*choose edge-aware or bilinear"):
        to_colour(np.zeros((8, 8), np.uint16), layout, Layout.RGB8, "vng")


@pytest.mark.parametrize("method", DEMOSAIC_METHODS)
@pytest.mark.parametrize("shape", [(7, 8), (8, 7), (0, 8)])
def test_an_odd_side_is_refused(method: str, shape: tuple[int, int]) -> None:
    """Half a cell has no colour, and guessing one would shift every other."""
    with pytest.raises(DemosaicError, match="even sides"):
        to_colour(np.zeros(shape, np.uint8), Layout.BAYER_GRBG8, Layout.RGB8, method)


@pytest.mark.parametrize("method", INTERPOLATING)
def test_a_picture_without_neighbours_is_refused(method: str) -> None:
    """OpenCV returns black for it and says nothing."""
    with pytest.raises(DemosaicError, match="4×4"):
        to_colour(np.full((2, 8), 200, np.uint8), Layout.BAYER_GRBG8, Layout.RGB8, method)


def test_an_unknown_method_is_named() -> None:
    """A misspelt method gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="bilinear"):
        to_colour(np.zeros((8, 8), np.uint8), Layout.MONO8, Layout.RGB8, "bilinaer")


@pytest.mark.parametrize("target", COLOUR_LAYOUTS)
def test_mono_is_repeated(target: Layout) -> None:
    """A grey camera still feeds a colour model."""
    mono = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert (to_colour(mono, Layout.MONO8, target, "bilinear") == mono[..., None]).all()
    assert (to_colour(mono.astype(np.uint16) * 256 + 99, Layout.MONO16, target, "bilinear") == mono[..., None]).all()


def test_colour_is_reordered_only_where_it_must_be() -> None:
    """A picture already in the model's order costs nothing."""
    picture = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert to_colour(picture, Layout.RGB8, Layout.RGB8, "bilinear") is picture
    assert to_colour(picture, Layout.BGR8, Layout.BGR8, "bilinear") is picture
    assert (to_colour(picture, Layout.RGB8, Layout.BGR8, "bilinear") == picture[..., ::-1]).all()
    assert (to_colour(picture, Layout.BGR8, Layout.RGB8, "bilinear") == picture[..., ::-1]).all()
