from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.imaging import boxes, geometry
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan

SIDES = st.integers(2, 90)
GEOMETRIES = st.builds(plan, st.sampled_from(Resize), SIDES, SIDES, SIDES, SIDES)
FRACTIONS = st.tuples(*[st.floats(-0.2, 1.2)] * 4)


def _box(fractions: tuple[float, ...], width: int, height: int) -> Any:
    """Returns a box from x1, x2, y1, y2 given as fractions of an image's sides, in any order."""
    x1, x2 = sorted(fraction * width for fraction in fractions[:2])
    y1, y2 = sorted(fraction * height for fraction in fractions[2:])
    return np.array([[x1, y1, x2, y2]])


@settings(max_examples=300)
@given(GEOMETRIES, FRACTIONS)
def test_box_and_mask_map_to_the_same_place(made: geometry.Geometry, fractions: tuple[float, ...]) -> None:
    """A mask of the box's pixels, scaled to the source, covers the pixels whose centres lie in the converted box."""
    box = np.rint(_box(fractions, made.target_width, made.target_height))
    assume((box[:, 2:] > box[:, :2]).all())
    x1, y1, x2, y2 = box[0].clip(0).astype(int)
    mask = np.zeros((made.target_height, made.target_width), np.uint8)
    mask[y1:y2, x1:x2] = 1
    scaled = geometry.to_source(mask, made, 255)
    converted = boxes.to_source(box, made)[0].astype(np.float64)
    columns, rows = np.arange(made.source_width) + 0.5, np.arange(made.source_height) + 0.5
    for axis, centres, low, high in ((0, columns, converted[0], converted[2]), (1, rows, converted[1], converted[3])):
        inside = (centres > low + 1e-3) & (centres < high - 1e-3)
        outside = (centres < low - 1e-3) | (centres > high + 1e-3)
        covered, unseen = (scaled == 1).any(axis=axis), (scaled == 255).all(axis=axis)
        if (scaled == 1).any():
            assert covered[inside & ~unseen].all()
        assert not covered[outside].any()


@given(GEOMETRIES, FRACTIONS)
def test_conversions_are_inverse(made: geometry.Geometry, fractions: tuple[float, ...]) -> None:
    """Boxes are drawn on the model's input although results are in source coordinates."""
    box = _box(fractions, made.source_width, made.source_height)
    back = boxes.to_source(boxes.to_target(box, made), made)
    limit = [made.source_width, made.source_height] * 2
    np.testing.assert_allclose(back, np.clip(box, 0, limit), atol=1e-2)


@given(GEOMETRIES, FRACTIONS)
def test_boxes_are_clipped_to_the_source(made: geometry.Geometry, fractions: tuple[float, ...]) -> None:
    """Vehicles reject boxes that extend beyond the frame."""
    converted = boxes.to_source(_box(fractions, made.target_width, made.target_height) * 3, made)
    assert converted.dtype == np.float32
    assert (converted >= 0).all()
    assert (converted <= [made.source_width, made.source_height] * 2).all()
    assert (converted[:, :2] <= converted[:, 2:]).all()


@pytest.mark.parametrize("resize", Resize)
@pytest.mark.parametrize("binned", [False, True])
def test_box_matches_real_pixels(resize: Resize, *, binned: bool) -> None:
    """Geometry and boxes must agree on real pixels, also after binning."""
    height, width = 480, 640
    made = plan(resize, height, width, 96, 192)
    frame = np.zeros((height, width), np.uint8)
    frame[200:280, 240:400] = 255
    method = "binning" if binned else "bilinear"
    image = geometry.apply(to_colour(frame, Layout.BAYER_RGGB8, Layout.RGB8, method), made)
    rows, columns = np.nonzero(image[..., 1] > 127)
    found = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]])
    expected = np.array([[240, 200, 400, 280]])
    pixel_size = max(made.crop_width / made.paste_width, made.crop_height / made.paste_height)
    np.testing.assert_allclose(boxes.to_source(found, made), expected, atol=1.01 * pixel_size)
    np.testing.assert_allclose(boxes.to_target(expected, made), found, atol=1.01)
