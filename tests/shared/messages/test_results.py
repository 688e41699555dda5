from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import SkylaneError
from shared.messages import tensors
from shared.messages.results import MAX_DETECTIONS, Classification, Detections, Tensors
from shared.task import TASKS, task_named

SCORES = st.floats(0, 1, width=32)


def _round_trip(task: str, result: Any, codec: str, shape: tuple[int, int] | None) -> Any:
    plug_in = task_named(task)
    return plug_in.decode(plug_in.encode(result, codec), codec, shape)


@pytest.mark.parametrize("codec", task_named("classification").codecs)
@settings(max_examples=60)
@given(st.dictionaries(st.integers(0, 255), SCORES, min_size=1))
@example({3: 0.5, 1: 0.5})
def test_classification_round_trips(codec: str, scores: dict[int, float]) -> None:
    """Scores are preserved to the last bit of float32."""
    best = sorted(scores.items(), key=lambda item: -item[1])
    result = Classification(tuple(class_id for class_id, _ in best), tuple(score for _, score in best))
    assert _round_trip("classification", result, codec, None) == result


def _detections(count: int, seed: int = 3) -> Detections:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 500, (count, 2, 2)).astype(np.float32)
    corners.sort(axis=1)
    scores = -np.sort(-random.uniform(0, 1, count)).astype(np.float32)
    return Detections(corners.reshape(count, 4), random.integers(0, 7, count, np.uint16), scores)


@pytest.mark.parametrize("codec", task_named("detection").codecs)
@pytest.mark.parametrize("count", [0, 1, 17, MAX_DETECTIONS])
def test_detections_round_trip(codec: str, count: int) -> None:
    """No detections are a valid result too."""
    detections = _detections(count)
    decoded = _round_trip("detection", detections, codec, None)
    assert isinstance(decoded, Detections)
    for name in ("boxes", "class_ids", "scores"):
        expected, actual = getattr(detections, name), getattr(decoded, name)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("codec", task_named("segmentation").codecs)
def test_mask_round_trips(codec: str) -> None:
    """The shape is transmitted separately."""
    mask = np.random.default_rng(1).integers(0, 5, (7, 9), np.uint8)
    np.testing.assert_array_equal(_round_trip("segmentation", mask, codec, (7, 9)), mask)


def test_tensors_keep_names_and_order() -> None:
    """The order is that of the request."""
    values: dict[str, Any] = {"b": np.zeros((2, 3), np.float16), "a": np.array(5, np.int64)}
    back = _round_trip("tensors", Tensors(values), "zstd", None)
    assert isinstance(back, Tensors)
    assert list(back.values) == ["b", "a"]
    assert back.values["a"] == 5


def _arrays(count: int = 2) -> dict[str, Any]:
    found = _detections(count)
    return {"boxes": found.boxes, "class_ids": found.class_ids, "scores": found.scores}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"boxes": np.full((2, 4), np.nan, np.float32)}, "not finite"),
        ({"boxes": np.array([[0, 0, np.inf, 1]] * 2, np.float32)}, "not finite"),
        ({"boxes": np.array([[5, 0, 1, 1]] * 2, np.float32)}, "x2 < x1"),
        ({"boxes": np.zeros((3, 4), np.float32)}, "3 boxes for 2 classes"),
        ({"boxes": np.zeros((2, 5), np.float32)}, "boxes is float32 of shape"),
        ({"boxes": np.zeros((2, 4), np.float64)}, "boxes is float64"),
        ({"scores": np.array([0.1, 0.2], np.float32)}, "highest first"),
        ({"scores": np.array([np.nan, 0.2], np.float32)}, "not finite"),
        ({"scores": np.zeros(3, np.float32)}, "2 classes with 3 scores"),
        ({"class_ids": np.array([1, 1024], np.uint16)}, "class id 1024 is over 1023"),
        ({"class_ids": np.array([1, 3], np.int64)}, "class_ids is int64"),
        (_arrays(MAX_DETECTIONS + 1), "at most 1000"),
    ],
)
def test_invalid_detections_are_rejected(change: dict[str, Any], reason: str) -> None:
    """Sinks draw and count detections without further checks."""
    with pytest.raises(SkylaneError, match=reason):
        task_named("detection").decode(tensors.encode(_arrays() | change, "raw"), "raw", None)


@pytest.mark.parametrize(
    "arrays",
    [
        {"class_ids": np.zeros(0, np.uint16), "scores": np.zeros(0, np.float32)},
        {"class_ids": np.array([1, 1], np.uint16), "scores": np.array([0.5, 0.5], np.float32)},
        {"class_ids": np.array([1], np.uint16)},
        {"class_ids": np.array([1], np.uint16), "scores": np.array([[0.5]], np.float32)},
        {"class_ids": np.arange(1025, dtype=np.uint16), "scores": np.zeros(1025, np.float32)},
    ],
    ids=["none", "twice", "no scores", "shape", "many"],
)
def test_invalid_classification_is_rejected(arrays: dict[str, Any]) -> None:
    """Sinks show scores without further checks."""
    with pytest.raises(SkylaneError):
        task_named("classification").decode(tensors.encode(arrays, "raw"), "raw", None)


def test_mask_without_shape_is_rejected() -> None:
    """The data alone does not define the number of pixels."""
    with pytest.raises(SkylaneError, match="send its shape"):
        task_named("segmentation").decode(b"", "raw", None)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_offers_only_lossless_codecs(task: str) -> None:
    """A changed class id would be another kind of object."""
    assert "zstd" in task_named(task).codecs
    assert "jpeg" not in task_named(task).codecs
    assert task_named(task).result_name
