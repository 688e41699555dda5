import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from shared.imaging.geometry import Geometry, GeometryError, Resize, apply, check, plan, to_source
from shared.imaging.opencv import MAX_PIXELS, cv2

NO_CLASS = 11

sides = st.integers(1, 160)
resizes = st.sampled_from(list(Resize))


def label_image(height: int, width: int, seed: int) -> npt.NDArray[np.uint8]:
    """Returns two classes, 0 and 200, with a slanted straight border between them."""
    rows, columns = np.mgrid[0:height, 0:width]
    angle = seed / 10
    side = (rows - height / 2) * np.sin(angle) + (columns - width / 2) * np.cos(angle)
    return np.where(side > 0, 200, 0).astype(np.uint8)


@given(resize=resizes, source=st.tuples(sides, sides), target=st.tuples(sides, sides), seed=st.integers(0, 62))
def test_mask_returns_to_its_place_in_the_source(
    resize: Resize, source: tuple[int, int], target: tuple[int, int], seed: int
) -> None:
    """An offset of one pixel would move every kerb; only the border between classes may blur."""
    labels = label_image(*source, seed)
    geometry = plan(resize, *source, *target)
    resized = apply(labels, geometry)
    assert resized.shape == target
    scaled = to_source(np.where(resized > 100, 200, 0).astype(np.uint8), geometry, NO_CLASS)
    assert scaled.shape == source
    seen = np.zeros(source, bool)
    seen[
        geometry.crop_top : geometry.crop_top + geometry.crop_height,
        geometry.crop_left : geometry.crop_left + geometry.crop_width,
    ] = True
    assert (scaled[~seen] == NO_CLASS).all()
    # The kernel of a resize covers two of the coarser pixels; farther from a border, labels must be exact.
    coarse = (geometry.crop_height / geometry.paste_height, geometry.crop_width / geometry.paste_width)
    radius = [2 * int(np.ceil(max(1.0, factor))) + 1 for factor in coarse]
    kernel = np.ones((2 * radius[0] + 1, 2 * radius[1] + 1), np.uint8)
    inside = (cv2.erode(labels, kernel) == cv2.dilate(labels, kernel)) & seen
    assert (scaled[inside] == labels[inside]).all()


@given(
    resize=resizes,
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    factor=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_integer_factors_are_exact(resize: Resize, target: tuple[int, int], factor: int, seed: int) -> None:
    """Each mask pixel becomes exactly one block, as for 1936×1216 to 968×608."""
    geometry = plan(resize, target[0] * factor, target[1] * factor, *target)
    mask = np.random.default_rng(seed).integers(0, 12, target, dtype=np.uint8)
    image = np.repeat(np.repeat(mask, factor, axis=0), factor, axis=1)
    assert (apply(image, geometry) == mask).all()
    assert (to_source(mask, geometry, NO_CLASS) == image).all()


@given(resize=resizes, source=st.tuples(sides, sides), target=st.tuples(sides, sides))
def test_plans_pass_the_check(resize: Resize, source: tuple[int, int], target: tuple[int, int]) -> None:
    """The geometry is part of every reply, and receivers validate it."""
    geometry = plan(resize, *source, *target)
    check(geometry)
    if resize is not Resize.LETTERBOX:
        assert (geometry.paste_height, geometry.paste_width) == target
    if resize is not Resize.CROP:
        assert (geometry.crop_height, geometry.crop_width) == source


@given(source=st.tuples(st.integers(40, 400), st.integers(40, 400)), target=st.tuples(sides, sides))
def test_crop_and_letterbox_keep_the_aspect_ratio(source: tuple[int, int], target: tuple[int, int]) -> None:
    """Only rounding to an even pixel may change it."""
    assume(min(target) >= 8 and max(target) / min(target) < 8)
    crop = plan(Resize.CROP, *source, *target)
    assert crop.crop_height == source[0] or crop.crop_width == source[1]
    assert abs(crop.crop_width * target[0] - crop.crop_height * target[1]) <= 2 * max(target)
    letterbox = plan(Resize.LETTERBOX, *source, *target)
    assert letterbox.paste_height == target[0] or letterbox.paste_width == target[1]
    assert abs(letterbox.paste_width * source[0] - letterbox.paste_height * source[1]) <= max(source) * 1.01 or 1 in (
        letterbox.paste_height,
        letterbox.paste_width,
    )


def test_crop_is_centred() -> None:
    """1936×1216 to 2048×1024 removes 124 rows at the top and at the bottom."""
    geometry = plan(Resize.CROP, 1216, 1936, 1024, 2048)
    assert (geometry.crop_top, geometry.crop_left, geometry.crop_height, geometry.crop_width) == (124, 0, 968, 1936)


def test_letterbox_pads_with_black() -> None:
    """The image is centred."""
    geometry = plan(Resize.LETTERBOX, 10, 20, 20, 20)
    result = apply(np.full((10, 20, 3), 255, np.uint8), geometry)
    assert (result[5:15] == 255).all()
    assert not result[:5].any()
    assert not result[15:].any()


def test_image_and_mask_of_the_target_size_are_not_copied() -> None:
    """Binning already gives the target size in the usual case of a vehicle, where a copy would cost 1.8 MB."""
    binned = np.zeros((608, 968, 3), np.uint8)
    assert apply(binned, plan(Resize.CROP, 1216, 1936, 608, 968)) is binned
    geometry = plan(Resize.CROP, 64, 96, 64, 96)
    image = np.zeros((64, 96, 3), np.uint8)
    mask = np.zeros((64, 96), np.uint8)
    assert apply(image, geometry) is image
    assert to_source(mask, geometry, NO_CLASS) is mask


@given(resize=resizes, half=st.tuples(st.integers(8, 80), st.integers(8, 80)), target=st.tuples(sides, sides))
def test_binned_image_is_cropped_at_the_same_place(
    resize: Resize, half: tuple[int, int], target: tuple[int, int]
) -> None:
    """Binning must not shift the crop against the geometry."""
    height, width = half[0] * 2, half[1] * 2
    geometry = plan(resize, height, width, *target)
    assume(geometry.crop_height > 1 and geometry.crop_width > 1)
    assert geometry.crop_top % 2 == geometry.crop_left % 2 == 0
    columns = np.broadcast_to(np.arange(half[1]) * 255 // half[1], half).astype(np.uint8)
    whole = apply(np.repeat(np.repeat(columns, 2, axis=0), 2, axis=1), geometry)
    halved = apply(columns, geometry)
    # Apart from interpolation, less than two steps of the ramp.
    assert np.abs(whole.astype(int) - halved).max() <= 2 * -(-255 // half[1]) + 1


def test_image_and_mask_of_another_size_are_rejected() -> None:
    """A camera may change its resolution during a drive, and masks are received from the network."""
    geometry = plan(Resize.CROP, 1216, 1936, 608, 968)
    with pytest.raises(GeometryError, match=r"1000×1936.*1216×1936"):
        apply(np.zeros((1000, 1936, 3), np.uint8), geometry)
    with pytest.raises(GeometryError, match="mask is 10×10"):
        to_source(np.zeros((10, 10), np.uint8), geometry, NO_CLASS)


@pytest.mark.parametrize("sizes", [(0, 5, 5, 5), (5, 5, 0, 5), (5, -1, 5, 5), (5, 70000, 5, 5), (65535, 65535, 5, 5)])
def test_invalid_sizes_are_rejected(sizes: tuple[int, int, int, int]) -> None:
    """The error names the size, which never reaches OpenCV."""
    with pytest.raises(GeometryError, match=r"is -?[0-9]+×"):
        plan(Resize.STRETCH, *sizes)


PLAN = plan(Resize.LETTERBOX, 1216, 1936, 1024, 2048)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"crop_height": 0}, "crop_height is 0"),
        ({"crop_top": 1}, "crop_height is 1216 from 1"),
        ({"paste_width": 2048}, "paste_width"),
        ({"source_height": 60000, "source_width": 60000}, "source is 60000×60000"),
        ({"target_width": 0}, "target is 1024×0"),
    ],
)
def test_invalid_geometry_is_rejected(change: dict[str, int], reason: str) -> None:
    """A rectangle outside its image would read or write out of bounds."""
    check(PLAN)
    with pytest.raises(GeometryError, match=reason):
        check(replace(PLAN, **change))


@given(st.fixed_dictionaries(dict.fromkeys(asdict(PLAN), st.integers(0, 9))))
def test_checked_geometry_has_valid_rectangles(lengths: dict[str, int]) -> None:
    """Every rectangle lies inside its image."""
    geometry = Geometry(**lengths)
    try:
        check(geometry)
    except GeometryError:
        return
    assert 0 < geometry.source_height * geometry.source_width <= MAX_PIXELS
    assert geometry.crop_top + geometry.crop_height <= geometry.source_height
    assert geometry.crop_left + geometry.crop_width <= geometry.source_width
    assert geometry.paste_top + geometry.paste_height <= geometry.target_height
    assert geometry.paste_left + geometry.paste_width <= geometry.target_width
