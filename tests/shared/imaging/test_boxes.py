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
SHARES = st.tuples(*[st.floats(-0.2, 1.2)] * 4)


def _box(shares: tuple[float, ...], width: int, height: int) -> Any:
    """A box of these shares of a picture's sides, in order."""
    x1, x2 = sorted(share * width for share in shares[:2])
    y1, y2 = sorted(share * height for share in shares[2:])
    return np.array([[x1, y1, x2, y2]])


@settings(max_examples=300)
@given(GEOMETRIES, SHARES)
def test_a_box_goes_back_to_where_its_pixels_go(made: geometry.Geometry, shares: tuple[float, ...]) -> None:
    """A mask of the box's pixels, laid back, covers exactly the source pixels whose centres lie in the laid box."""
    box = np.rint(_box(shares, made.target_width, made.target_height))
    assume((box[:, 2:] > box[:, :2]).all())
    x1, y1, x2, y2 = box[0].clip(0).astype(int)
    mask = np.zeros((made.target_height, made.target_width), np.uint8)
    mask[y1:y2, x1:x2] = 1
    seen = geometry.to_source(mask, made, 255)
    laid = boxes.to_source(box, made)[0].astype(np.float64)
    columns, rows = np.arange(made.source_width) + 0.5, np.arange(made.source_height) + 0.5
    for axis, centres, low, high in ((0, columns, laid[0], laid[2]), (1, rows, laid[1], laid[3])):
        inside = (centres > low + 1e-3) & (centres < high - 1e-3)
        outside = (centres < low - 1e-3) | (centres > high + 1e-3)
        one, unseen = (seen == 1).any(axis=axis), (seen == 255).all(axis=axis)
        if (seen == 1).any():
            assert one[inside & ~unseen].all()
        assert not one[outside].any()


@given(GEOMETRIES, SHARES)
def test_there_and_back_is_the_same_box(made: geometry.Geometry, shares: tuple[float, ...]) -> None:
    """What a viewer draws on the model's picture is what the model said of it."""
    box = _box(shares, made.source_width, made.source_height)
    back = boxes.to_source(boxes.apply(box, made), made)
    limit = [made.source_width, made.source_height] * 2
    np.testing.assert_allclose(back, np.clip(box, 0, limit), atol=1e-2)


@given(GEOMETRIES, SHARES)
def test_no_box_reaches_over_the_frame(made: geometry.Geometry, shares: tuple[float, ...]) -> None:
    """Whoever cuts it out of the frame need not look; the vehicle refuses one that does."""
    laid = boxes.to_source(_box(shares, made.target_width, made.target_height) * 3, made)
    assert laid.dtype == np.float32
    assert (laid >= 0).all()
    assert (laid <= [made.source_width, made.source_height] * 2).all()
    assert (laid[:, :2] <= laid[:, 2:]).all()


@pytest.mark.parametrize("resize", Resize)
@pytest.mark.parametrize("binned", [False, True])
def test_a_bright_thing_is_where_its_box_says(resize: Resize, *, binned: bool) -> None:
    """On real pixels, through binning as well: geometry and box must tell of the same place."""
    height, width = 480, 640
    made = plan(resize, height, width, 96, 192)
    frame = np.zeros((height, width), np.uint8)
    frame[200:280, 240:400] = 255
    method = "binning" if binned else "bilinear"
    picture = geometry.apply(to_colour(frame, Layout.BAYER_RGGB8, Layout.RGB8, method), made)
    rows, columns = np.nonzero(picture[..., 1] > 127)
    found = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]])
    expected = np.array([[240, 200, 400, 280]])
    a_pixel = max(made.crop_width / made.paste_width, made.crop_height / made.paste_height)
    np.testing.assert_allclose(boxes.to_source(found, made), expected, atol=1.01 * a_pixel)
    np.testing.assert_allclose(boxes.apply(expected, made), found, atol=1.01)
