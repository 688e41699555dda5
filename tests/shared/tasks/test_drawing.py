from typing import Any

import numpy as np
import pytest

from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels, overlay
from shared.messages.results import Classification, Detections, Tensors
from shared.task import task_named
from shared.tasks.drawing import LEGIBLE_WIDTH

LABELS = Labels(
    ("car", "person", "bicycle with a name far too long for an image"), ((0, 0, 255), (255, 0, 0), (9, 9, 9))
)
HEIGHT, WIDTH = 300, LEGIBLE_WIDTH
TASK_OF: dict[type, str] = {Classification: "classification", Detections: "detection", Tensors: "tensors"}
FRAME = plan(
    Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH
)  # Scaled by 1/2 after cropping 240 pixels on both sides.


def draw(rgb: Any, result: Any, *settings: Any) -> Any:
    """Draws a result by the plug-in of its task."""
    return task_named(TASK_OF.get(type(result), "segmentation")).draw(rgb, result, *settings)


def _grey(height: int = HEIGHT, width: int = WIDTH) -> Any:
    return np.full((height, width, 3), 128, np.uint8)


def _detections(*boxes: tuple[int, ...], class_id: int = 0) -> Detections:
    count = len(boxes)
    scores = np.linspace(0.9, 0.4, count).astype(np.float32)
    return Detections(np.array(boxes, np.float32).reshape(count, 4), np.full(count, class_id, np.uint16), scores)


def _changed(drawn: Any, width: int = WIDTH, height: int = HEIGHT) -> Any:
    return (drawn != _grey(height, width)).any(axis=-1)


@pytest.mark.parametrize("scale", [1, 2])
def test_box_is_drawn_at_its_object(scale: int) -> None:
    """Boxes are in frame coordinates; the image is the cropped model input at any scale."""
    image = _grey(scale * HEIGHT, scale * WIDTH)
    drawn = draw(image, _detections((480, 200, 880, 400)), LABELS, FRAME, 1.0)
    blue = (drawn == LABELS.colours[0]).all(axis=-1)
    rows, columns = np.nonzero(blue[scale * 110 :])
    expected = (120 * scale, 320 * scale, 200 * scale)
    found = (columns.min(), columns.max(), rows.max() + scale * 110)
    np.testing.assert_allclose(found, expected, atol=3 * scale)
    assert not _changed(drawn, scale * WIDTH, scale * HEIGHT)[
        120 * scale : 180 * scale, 140 * scale : 300 * scale
    ].any()
    assert (image == 128).all()


def test_labels_of_boxes_do_not_overlap() -> None:
    """The second label moves below its box."""
    first = _changed(draw(_grey(), _detections((480, 200, 880, 400)), LABELS, FRAME, 1.0))
    assert first[85:98, 125:160].any()
    both = _changed(draw(_grey(), _detections((480, 200, 880, 400), (480, 204, 880, 404)), LABELS, FRAME, 1.0))
    assert both[206:220, 125:160].any()
    assert not first[206:220, 125:160].any()


@pytest.mark.parametrize("box", [(240, 0, 1200, 600), (0, 0, 1440, 600), (240, 0, 242, 2), (1198, 598, 1200, 600)])
def test_boxes_hide_little_of_the_image(box: tuple[int, ...]) -> None:
    """Covers boxes as large as the frame, at its corners, and with long labels."""
    for class_id in (0, 2, 77):
        changed = _changed(draw(_grey(), _detections(box, class_id=class_id), LABELS, FRAME, 1.0))
        assert 0 < changed.mean() < 0.2


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (48, 64), (200, 1600), (1200, 300)])
def test_classification_is_a_bar_chart_in_a_corner(size: tuple[int, int]) -> None:
    """Bars are proportional to the scores and cover only the lower left corner."""
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
def test_tensors_are_listed_in_a_corner(count: int) -> None:
    """A long list is shortened."""
    result = Tensors({f"head-{i}": np.zeros((7, 7), np.float16) for i in range(count)})
    changed = _changed(draw(_grey(), result, LABELS, FRAME, 1.0))
    assert 0.001 < changed.mean() < 0.5
    assert not changed[: HEIGHT // 2].any()


def test_empty_results_leave_the_image_unchanged() -> None:
    """A frame without objects has a valid result."""
    for result in (_detections(), Tensors({})):
        assert _changed(draw(_grey(), result, LABELS, FRAME, 1.0)).mean() < 0.02


def test_non_ascii_labels_are_drawn() -> None:
    """OpenCV's fonts have only ASCII; other letters must not raise."""
    labels = Labels(("Fußgänger", "自転車", "\N{PEDESTRIAN}"), ((1, 2, 3),) * 3)
    drawn = draw(_grey(), Classification((0, 1, 2), (0.5, 0.3, 0.2)), labels, FRAME, 1.0)
    assert _changed(drawn).any()


def test_mask_is_blended_and_has_a_legend() -> None:
    """The legend lists the classes in the mask in the lower left corner; the rest is the result of `overlay`."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    one = draw(_grey(), mask, LABELS, FRAME, 0.5)
    blended = overlay(_grey(), mask, LABELS, 0.5)
    changed = np.argwhere((one != blended).any(axis=2))
    assert changed[:, 0].min() > HEIGHT / 2
    assert changed[:, 1].max() < WIDTH / 2
    mask[:, WIDTH // 2 :] = 1
    two = draw(_grey(), mask, LABELS, FRAME, 0.5)
    higher = np.argwhere((two != overlay(_grey(), mask, LABELS, 0.5)).any(axis=2))
    assert higher[:, 0].min() < changed[:, 0].min()


def test_a_narrow_image_has_no_legend() -> None:
    """Its text would not be legible and would cover the image."""
    rgb, mask = np.zeros((60, 80, 3), np.uint8), np.zeros((60, 80), np.uint8)
    np.testing.assert_array_equal(draw(rgb, mask, LABELS, FRAME, 0.5), overlay(rgb, mask, LABELS, 0.5))


def test_the_label_of_a_small_box_is_smaller_than_that_of_a_large_box() -> None:
    """A label in the size for the image would cover its neighbours."""
    image = _grey(4 * HEIGHT, 4 * WIDTH)

    def label_height(side: int) -> int:
        drawn = draw(image, _detections((300, 300, 300 + side, 300 + side)), LABELS, FRAME, 0.5)
        left = round((300 - 240) / 2 * 4) + 8
        return int((drawn[: 4 * 150 - 8, left] != image[0, 0]).any(axis=1).sum())

    assert 0 < label_height(30) < label_height(280)
