from typing import Any

import numpy as np
import pytest

from shared.imaging.drawing import LEGIBLE_WIDTH, draw
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels, overlay
from shared.messages.results import Classification, Detections, Tensors

LABELS = Labels(
    ("car", "person", "bicycle with a name far too long for a picture"), ((0, 0, 255), (255, 0, 0), (9, 9, 9))
)
HEIGHT, WIDTH = 300, LEGIBLE_WIDTH
FRAME = plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)  # Halved, and cut by 240 pixels on both sides.


def _grey(height: int = HEIGHT, width: int = WIDTH) -> Any:
    return np.full((height, width, 3), 128, np.uint8)


def _found(*boxes: tuple[int, ...], class_id: int = 0) -> Detections:
    count = len(boxes)
    scores = np.linspace(0.9, 0.4, count).astype(np.float32)
    return Detections(np.array(boxes, np.float32).reshape(count, 4), np.full(count, class_id, np.uint16), scores)


def _changed(drawn: Any, width: int = WIDTH, height: int = HEIGHT) -> Any:
    return (drawn != _grey(height, width)).any(axis=-1)


@pytest.mark.parametrize("scale", [1, 2])
def test_a_box_is_drawn_where_the_object_is_in_the_picture(scale: int) -> None:
    """Boxes count the frame's pixels, and the picture is the part of it that the model saw, at any scale."""
    picture = _grey(scale * HEIGHT, scale * WIDTH)
    drawn = draw(picture, _found((480, 200, 880, 400)), LABELS, FRAME, 1.0)
    blue = (drawn == LABELS.colours[0]).all(axis=-1)
    rows, columns = np.nonzero(blue[scale * 110 :])
    expected = (120 * scale, 320 * scale, 200 * scale)
    found = (columns.min(), columns.max(), rows.max() + scale * 110)
    np.testing.assert_allclose(found, expected, atol=3 * scale)
    assert not _changed(drawn, scale * WIDTH, scale * HEIGHT)[
        120 * scale : 180 * scale, 140 * scale : 300 * scale
    ].any()
    assert (picture == 128).all()


def test_the_name_stands_at_its_box_and_another_beside_it() -> None:
    """Names over each other could be read by nobody."""
    one = _changed(draw(_grey(), _found((480, 200, 880, 400)), LABELS, FRAME, 1.0))
    assert one[85:98, 125:160].any()
    two = _changed(draw(_grey(), _found((480, 200, 880, 400), (480, 204, 880, 404)), LABELS, FRAME, 1.0))
    assert two[206:220, 125:160].any()
    assert not one[206:220, 125:160].any()


@pytest.mark.parametrize("box", [(240, 0, 1200, 600), (0, 0, 1440, 600), (240, 0, 242, 2), (1198, 598, 1200, 600)])
def test_no_box_covers_the_picture(box: tuple[int, ...]) -> None:
    """Not even one as large as the frame, nor a long name at its edge; nothing is drawn beyond it either."""
    for class_id in (0, 2, 77):
        changed = _changed(draw(_grey(), _found(box, class_id=class_id), LABELS, FRAME, 1.0))
        assert 0 < changed.mean() < 0.2


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (48, 64), (200, 1600), (1200, 300)])
def test_a_classification_becomes_bars_in_a_corner(size: tuple[int, int]) -> None:
    """As long as its scores, and never over the whole picture."""
    result = Classification((1, 0, 2), (0.75, 0.2, 0.05))
    drawn = draw(_grey(*size), result, LABELS, FRAME, 1.0)
    changed = _changed(drawn, size[1], size[0])
    assert changed.any()
    assert not changed[: size[0] // 3].any()
    red, blue = ((drawn == LABELS.colours[class_id]).all(axis=-1).sum() for class_id in (1, 0))
    if size == (HEIGHT, WIDTH):
        assert not changed[:, size[1] // 2 :].any()
        assert 3 < red / blue < 4.5


@pytest.mark.parametrize("count", [1, 3, 60])
def test_tensors_are_told_in_a_corner(count: int) -> None:
    """Their numbers are no picture; how many there are is."""
    result = Tensors({f"head-{i}": np.zeros((7, 7), np.float16) for i in range(count)})
    changed = _changed(draw(_grey(), result, LABELS, FRAME, 1.0))
    assert 0.001 < changed.mean() < 0.5
    assert not changed[: HEIGHT // 2].any()


def test_no_tensors_and_no_boxes_leave_the_picture_alone() -> None:
    """An empty street is a result."""
    for result in (_found(), Tensors({})):
        assert _changed(draw(_grey(), result, LABELS, FRAME, 1.0)).mean() < 0.02


def test_names_of_any_letters_are_drawn() -> None:
    """The fonts have few of them; none may end the sink."""
    labels = Labels(("Fußgänger", "自転車", "\N{PEDESTRIAN}"), ((1, 2, 3),) * 3)
    drawn = draw(_grey(), Classification((0, 1, 2), (0.5, 0.3, 0.2)), labels, FRAME, 1.0)
    assert _changed(drawn).any()


def test_a_mask_is_blended_in() -> None:
    """As it always was."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    np.testing.assert_array_equal(draw(_grey(), mask, LABELS, FRAME, 0.5), overlay(_grey(), mask, LABELS, 0.5))
