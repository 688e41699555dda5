"""The way of a picture to a model's input, and of a mask back onto the picture."""

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


def label_picture(height: int, width: int, seed: int) -> npt.NDArray[np.uint8]:
    """Two classes, 0 and 200, with a slanted straight border between them."""
    rows, columns = np.mgrid[0:height, 0:width]
    angle = seed / 10
    side = (rows - height / 2) * np.sin(angle) + (columns - width / 2) * np.cos(angle)
    return np.where(side > 0, 200, 0).astype(np.uint8)


@given(resize=resizes, source=st.tuples(sides, sides), target=st.tuples(sides, sides), seed=st.integers(0, 62))
def test_a_mask_lands_where_its_picture_was(
    resize: Resize, source: tuple[int, int], target: tuple[int, int], seed: int
) -> None:
    """A mask laid back one pixel off would move every kerb; only a class's border may blur by the resize."""
    labels = label_picture(*source, seed)
    geometry = plan(resize, *source, *target)
    resized = apply(labels, geometry)
    assert resized.shape == target
    laid = to_source(np.where(resized > 100, 200, 0).astype(np.uint8), geometry, NO_CLASS)
    assert laid.shape == source
    seen = np.zeros(source, bool)
    seen[
        geometry.crop_top : geometry.crop_top + geometry.crop_height,
        geometry.crop_left : geometry.crop_left + geometry.crop_width,
    ] = True
    assert (laid[~seen] == NO_CLASS).all()
    # A resize's kernel reaches two of its coarser pixels; inside of that a class must come back as it was.
    coarse = (geometry.crop_height / geometry.paste_height, geometry.crop_width / geometry.paste_width)
    reach = [2 * int(np.ceil(max(1.0, factor))) + 1 for factor in coarse]
    kernel = np.ones((2 * reach[0] + 1, 2 * reach[1] + 1), np.uint8)
    inside = (cv2.erode(labels, kernel) == cv2.dilate(labels, kernel)) & seen
    assert (laid[inside] == labels[inside]).all()


@given(
    resize=resizes,
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    factor=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_whole_factors_are_exact(resize: Resize, target: tuple[int, int], factor: int, seed: int) -> None:
    """1936×1216 to 968×608 is such a factor: every mask pixel becomes exactly its block."""
    geometry = plan(resize, target[0] * factor, target[1] * factor, *target)
    mask = np.random.default_rng(seed).integers(0, 12, target, dtype=np.uint8)
    picture = np.repeat(np.repeat(mask, factor, axis=0), factor, axis=1)
    assert (apply(picture, geometry) == mask).all()
    assert (to_source(mask, geometry, NO_CLASS) == picture).all()


@given(resize=resizes, source=st.tuples(sides, sides), target=st.tuples(sides, sides))
def test_a_plan_is_whole_and_passes_the_check(resize: Resize, source: tuple[int, int], target: tuple[int, int]) -> None:
    """The reply echoes the geometry, which whoever gets it checks."""
    geometry = plan(resize, *source, *target)
    check(geometry)
    if resize is not Resize.LETTERBOX:
        assert (geometry.paste_height, geometry.paste_width) == target
    if resize is not Resize.CROP:
        assert (geometry.crop_height, geometry.crop_width) == source


@given(source=st.tuples(st.integers(40, 400), st.integers(40, 400)), target=st.tuples(sides, sides))
def test_crop_and_letterbox_keep_the_aspect(source: tuple[int, int], target: tuple[int, int]) -> None:
    """A person twice as wide is another shape to a network; the rounding of one even pixel is all that is allowed."""
    assume(min(target) >= 8 and max(target) / min(target) < 8)
    crop = plan(Resize.CROP, *source, *target)
    assert crop.crop_height == source[0] or crop.crop_width == source[1]
    assert abs(crop.crop_width * target[0] - crop.crop_height * target[1]) <= 2 * max(target)
    box = plan(Resize.LETTERBOX, *source, *target)
    assert box.paste_height == target[0] or box.paste_width == target[1]
    assert abs(box.paste_width * source[0] - box.paste_height * source[1]) <= max(source) * 1.01 or 1 in (
        box.paste_height,
        box.paste_width,
    )


def test_crop_is_centred_as_the_original_system_did() -> None:
    """1936×1216 to 2048×1024: the width fits, 248 rows are cut, half above and half below."""
    geometry = plan(Resize.CROP, 1216, 1936, 1024, 2048)
    assert (geometry.crop_top, geometry.crop_left, geometry.crop_height, geometry.crop_width) == (124, 0, 968, 1936)


def test_letterbox_pads_with_black_around_the_centre() -> None:
    """A model trained on black margins must get black margins."""
    geometry = plan(Resize.LETTERBOX, 10, 20, 20, 20)
    result = apply(np.full((10, 20, 3), 255, np.uint8), geometry)
    assert (result[5:15] == 255).all()
    assert not result[:5].any()
    assert not result[15:].any()


def test_a_binned_picture_is_taken_as_it_is() -> None:
    """Binning has done the resize already: the hot path must not copy 1.8 MB to find that out."""
    geometry = plan(Resize.CROP, 1216, 1936, 608, 968)
    binned = np.zeros((608, 968, 3), np.uint8)
    assert apply(binned, geometry) is binned


def test_a_picture_of_the_target_size_is_taken_as_it_is() -> None:
    """So must a model of the sensor's own size, and its mask on the way back."""
    geometry = plan(Resize.CROP, 64, 96, 64, 96)
    picture = np.zeros((64, 96, 3), np.uint8)
    mask = np.zeros((64, 96), np.uint8)
    assert apply(picture, geometry) is picture
    assert to_source(mask, geometry, NO_CLASS) is mask


@given(resize=resizes, half=st.tuples(st.integers(8, 80), st.integers(8, 80)), target=st.tuples(sides, sides))
def test_a_halved_picture_is_cut_at_the_same_place(
    resize: Resize, half: tuple[int, int], target: tuple[int, int]
) -> None:
    """Binning first must not shift the crop against what the geometry tells the mask."""
    height, width = half[0] * 2, half[1] * 2
    geometry = plan(resize, height, width, *target)
    assume(geometry.crop_height > 1 and geometry.crop_width > 1)
    assert geometry.crop_top % 2 == geometry.crop_left % 2 == 0
    columns = np.broadcast_to(np.arange(half[1]) * 255 // half[1], half).astype(np.uint8)
    whole = apply(np.repeat(np.repeat(columns, 2, axis=0), 2, axis=1), geometry)
    halved = apply(columns, geometry)
    # Beside interpolation's own differences, less than two steps of the ramp.
    assert np.abs(whole.astype(int) - halved).max() <= 2 * -(-255 // half[1]) + 1


def test_a_picture_of_another_size_is_refused() -> None:
    """A camera that changes its resolution mid-drive must not be stretched in silence."""
    geometry = plan(Resize.CROP, 1216, 1936, 608, 968)
    with pytest.raises(GeometryError, match=r"1000×1936.*1216×1936"):
        apply(np.zeros((1000, 1936, 3), np.uint8), geometry)


def test_a_mask_of_another_size_is_refused() -> None:
    """It comes from the wire."""
    with pytest.raises(GeometryError, match="mask is 10×10"):
        to_source(np.zeros((10, 10), np.uint8), plan(Resize.CROP, 1216, 1936, 608, 968), NO_CLASS)


@pytest.mark.parametrize("sizes", [(0, 5, 5, 5), (5, 5, 0, 5), (5, -1, 5, 5), (5, 70000, 5, 5), (65535, 65535, 5, 5)])
def test_no_plan_is_made_for_impossible_sizes(sizes: tuple[int, int, int, int]) -> None:
    """A bad size is refused by name before it reaches OpenCV."""
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
def test_a_geometry_from_elsewhere_is_checked(change: dict[str, int], reason: str) -> None:
    """A rectangle outside its picture would read or write where nothing is."""
    check(PLAN)
    with pytest.raises(GeometryError, match=reason):
        check(replace(PLAN, **change))


@given(st.fixed_dictionaries(dict.fromkeys(asdict(PLAN), st.integers(0, 9))))
def test_what_passes_the_check_is_sound(lengths: dict[str, int]) -> None:
    """Its rectangles lie inside their pictures."""
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
