from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.imaging import boxes
from shared.imaging.geometry import Geometry, Resize, plan
from shared.messages.results import Detections
from shared.tasks.detection import DetectionTask
from tests.shared.tasks.parts import HEIGHT, WIDTH, manifest, message


def _found(corners: Any, scores: Any, geometry: Geometry | None = None, **section: Any) -> Detections:
    outputs = {"boxes": np.array(corners, np.float32).reshape(-1, 4), "scores": np.array(scores, np.float32)}
    got = DetectionTask().result(outputs, message(geometry=geometry), manifest("detection", detection=section))
    assert isinstance(got, Detections)
    return got


def _overlap(one: Any, other: Any) -> float:
    """Intersection over union."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    both = sides.clip(0).prod()
    return float(both / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - both))


def test_the_better_of_two_boxes_of_one_class_stays() -> None:
    """A box of another class at the same position also stays, such as a rider and a bicycle."""
    corners = [[0, 0, 20, 20], [1, 1, 20, 20], [1, 0, 20, 20], [30, 10, 40, 30]]
    scores = [[0.6, 0, 0], [0.9, 0, 0], [0, 0, 0.8], [0.5, 0.2, 0]]
    got = _found(corners, scores)
    assert got.class_ids.tolist() == [0, 2, 0]
    np.testing.assert_array_equal(got.boxes, np.array([corners[1], corners[2], corners[3]], np.float32))
    np.testing.assert_array_equal(got.scores, np.array([0.9, 0.8, 0.5], np.float32))


def test_an_anchor_is_one_object_of_its_most_probable_class() -> None:
    """Equal scores give the lower class id."""
    got = _found([[0, 0, 9, 9], [20, 20, 30, 30]], [[0.4, 0.7, 0.5], [0.1, 0.6, 0.6]])
    assert got.class_ids.tolist() == [1, 1]


def test_scores_below_the_threshold_are_dropped() -> None:
    """A score equal to the threshold is kept."""
    corners = [[i * 10, 0, i * 10 + 5, 5] for i in range(4)]
    scores = [[0.5, 0, 0], [0.49, 0, 0], [0.9, 0, 0], [0, 0, 0]]
    assert _found(corners, scores, score_threshold=0.5).scores.tolist() == pytest.approx([0.9, 0.5])
    assert len(_found(corners, scores, score_threshold=0.0).scores) == 4
    assert len(_found(corners, scores, score_threshold=0.95).scores) == 0


def test_the_number_of_objects_is_limited() -> None:
    """The best ones are kept."""
    corners = [[i * 2, 0, i * 2 + 1, 1] for i in range(20)]
    scores = [[0.3 + i / 100, 0, 0] for i in range(20)]
    got = _found(corners, scores, max_detections=3)
    np.testing.assert_array_equal(got.boxes[:, 0], [38, 36, 34])


@pytest.mark.parametrize("resize", Resize)
def test_boxes_are_in_pixels_of_the_original_frame(resize: Resize) -> None:
    """They are cut at its edges."""
    made = plan(resize, 200, 500, HEIGHT, WIDTH)
    corners = np.array([[10, 12, 30, 25], [-5, 15, 9, 70]])
    got = _found(corners, [[0.9, 0, 0], [0, 0.8, 0]], made)
    np.testing.assert_array_equal(got.boxes, boxes.to_source(corners, made))
    assert (got.boxes[:, 2:] <= (500, 200)).all()


def test_boxes_in_the_margin_of_a_letterbox_are_dropped() -> None:
    """The frame has no pixels there."""
    made = plan(Resize.LETTERBOX, 100, 500, HEIGHT, WIDTH)
    assert made.paste_top > 10
    assert len(_found([[5, 0, 20, 8]], [[0.9, 0, 0]], made).scores) == 0


def test_boxes_left_of_the_frame_do_not_suppress_other_classes() -> None:
    """OpenCV separates classes by shifting boxes, which fails for negative coordinates."""
    corners = [[-40, 0, 20, 30], [20, 0, 60, 30], [-40, 0, 20, 30], [0, 0, 60, 30]]
    scores = [[0.9, 0, 0], [0.8, 0, 0], [0, 0.7, 0], [0, 0, 0.6]]
    assert len(_found(corners, scores).scores) == 4


@pytest.mark.parametrize("wild", [[[np.inf] * 4], [[-1e38, -1e38, 1e38, 1e38]], [[9, 9, 3, 3]], [[5, 5, 5, 5]]])
def test_invalid_boxes_do_not_affect_others(wild: Any) -> None:
    """The boxes overflow, have swapped corners or no area."""
    got = _found([*wild, [10, 10, 20, 20]], [[0, 0.9, 0], [0.8, 0, 0]])
    assert 0 in got.class_ids
    assert np.isfinite(got.boxes).all()
    assert isinstance(DetectionTask().decode(DetectionTask().encode(got, "zstd"), "zstd", None), Detections)


def test_the_time_of_suppression_is_limited() -> None:
    """Every anchor is a certain object, and suppression is quadratic."""
    random = np.random.default_rng(4)
    corners = np.sort(random.uniform(0, 40, (50_000, 2, 2)), axis=1).reshape(-1, 4)
    got = _found(corners, random.uniform(0.9, 1, (50_000, 3)), iou_threshold=1.0, max_detections=1000)
    assert len(got.scores) == 1000


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 60), st.floats(0.1, 0.9))
def test_suppression_of_random_boxes(seed: int, anchors: int, threshold: float) -> None:
    """The objects are sorted, do not overlap within a class, and no unsuppressed one is missing."""
    random = np.random.default_rng(seed)
    corners = np.sort(random.uniform(0, 40, (anchors, 2, 2)), axis=1).reshape(-1, 4).astype(np.float32)
    scores = random.uniform(0, 1, (anchors, 3)).astype(np.float32)
    got = _found(corners, scores.reshape(-1, 3), iou_threshold=threshold, max_detections=1000)
    assert (np.diff(got.scores) <= 0).all()
    found = list(zip(got.boxes, got.class_ids, got.scores, strict=True))
    for place, (box, class_id, _) in enumerate(found):
        closest = [_overlap(box, other) for other, its, _ in found[:place] if its == class_id]
        assert max(closest, default=0.0) <= threshold + 1e-4
    for box, of_classes in zip(corners, scores, strict=True):
        score, class_id = of_classes.max(), of_classes.argmax()
        if score < 0.3:
            continue
        better = [_overlap(box, other) for other, its, known in found if its == class_id and known >= score]
        assert max(better, default=0.0) > threshold - 1e-4
