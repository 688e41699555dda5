from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import SkylaneError
from shared.messages import results, tensors
from shared.messages.model_card import Task
from shared.messages.results import (
    MAX_DETECTIONS,
    Classification,
    Detections,
    ResultError,
    Tensors,
    codecs,
    decode,
    encode,
)

SCORES = st.floats(0, 1, width=32)


@pytest.mark.parametrize("codec", codecs(Task.CLASSIFICATION))
@settings(max_examples=60)
@given(st.dictionaries(st.integers(0, 255), SCORES, min_size=1))
def test_a_classification_comes_back_exactly(codec: str, scores: dict[int, float]) -> None:
    """To the last bit of its float32 scores."""
    best = sorted(scores.items(), key=lambda item: -item[1])
    result = Classification(tuple(class_id for class_id, _ in best), tuple(score for _, score in best))
    assert decode(Task.CLASSIFICATION, encode(result, codec), codec, None) == result


def _detections(count: int, seed: int = 3) -> Detections:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 500, (count, 2, 2)).astype(np.float32)
    corners.sort(axis=1)
    scores = -np.sort(-random.uniform(0, 1, count)).astype(np.float32)
    return Detections(corners.reshape(count, 4), random.integers(0, 7, count, np.uint16), scores)


@pytest.mark.parametrize("codec", codecs(Task.DETECTION))
@pytest.mark.parametrize("count", [0, 1, 17, MAX_DETECTIONS])
def test_detections_come_back_exactly(codec: str, count: int) -> None:
    """An empty street is an answer too."""
    sent = _detections(count)
    back = decode(Task.DETECTION, encode(sent, codec), codec, None)
    assert isinstance(back, Detections)
    for name in ("boxes", "class_ids", "scores"):
        ours, theirs = getattr(sent, name), getattr(back, name)
        assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("codec", codecs(Task.SEGMENTATION))
def test_masks_travel_as_before(codec: str) -> None:
    """With their shape beside them."""
    mask = np.random.default_rng(1).integers(0, 5, (7, 9), np.uint8)
    np.testing.assert_array_equal(decode(Task.SEGMENTATION, encode(mask, codec), codec, (7, 9)), mask)


def test_tensors_come_back_under_their_names() -> None:
    """In the order in which they were asked for."""
    values: dict[str, Any] = {"b": np.zeros((2, 3), np.float16), "a": np.array(5, np.int64)}
    back = decode(Task.TENSORS, encode(Tensors(values), "zstd"), "zstd", None)
    assert isinstance(back, Tensors)
    assert list(back.values) == ["b", "a"]
    assert back.values["a"] == 5


def _good(count: int = 2) -> dict[str, Any]:
    found = _detections(count)
    return {"boxes": found.boxes, "class_ids": found.class_ids, "scores": found.scores}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"boxes": np.full((2, 4), np.nan, np.float32)}, "no number"),
        ({"boxes": np.array([[0, 0, np.inf, 1]] * 2, np.float32)}, "no number"),
        ({"boxes": np.array([[5, 0, 1, 1]] * 2, np.float32)}, "wrong way round"),
        ({"boxes": np.zeros((3, 4), np.float32)}, "3 boxes for 2 classes"),
        ({"boxes": np.zeros((2, 5), np.float32)}, "boxes is float32 of shape"),
        ({"boxes": np.zeros((2, 4), np.float64)}, "boxes is float64"),
        ({"scores": np.array([0.1, 0.2], np.float32)}, "best first"),
        ({"scores": np.array([np.nan, 0.2], np.float32)}, "no number"),
        ({"scores": np.zeros(3, np.float32)}, "2 classes with 3 scores"),
        ({"class_ids": np.array([1, 1300], np.uint16)}, "class id 1300 is over 1023"),
        ({"class_ids": np.array([1, 3], np.int64)}, "class_ids is int64"),
        (_good(MAX_DETECTIONS + 1), "at most 1000"),
    ],
)
def test_detections_that_cannot_be_true_are_refused(change: dict[str, Any], reason: str) -> None:
    """Sinks draw and count them without another look."""
    with pytest.raises(ResultError, match=reason):
        decode(Task.DETECTION, tensors.encode(_good() | change, "raw"), "raw", None)


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
def test_a_classification_that_cannot_be_true_is_refused(arrays: dict[str, Any]) -> None:
    """The same."""
    with pytest.raises(ResultError):
        decode(Task.CLASSIFICATION, tensors.encode(arrays, "raw"), "raw", None)


@pytest.mark.parametrize("task", Task)
@given(data=st.binary(max_size=60))
def test_bytes_of_anything_are_refused_or_read(task: Task, data: bytes) -> None:
    """Nothing but our own error may leave the reader."""
    for codec in codecs(task):
        try:
            decode(task, data, codec, (2, 2))
        except SkylaneError:
            continue


def test_a_mask_without_its_shape_is_refused() -> None:
    """Nothing says how many pixels it may have."""
    with pytest.raises(ResultError, match="send its shape"):
        decode(Task.SEGMENTATION, b"", "raw", None)


@pytest.mark.parametrize("task", Task)
def test_no_codec_of_any_task_loses_anything(task: Task) -> None:
    """A class that changed on the way is another object in the street."""
    assert "zstd" in codecs(task)
    assert "jpeg" not in codecs(task)
    assert results.noun(task)
