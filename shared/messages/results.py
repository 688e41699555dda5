"""The result types of each task and their lossless encoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging import mask_codecs
from shared.imaging.boxes import Boxes
from shared.imaging.labels import MAX_LABELS
from shared.imaging.mask_codecs import MASK_CODECS, Mask
from shared.messages import tensors
from shared.messages.model_card import Task
from shared.messages.tensors import TENSOR_CODECS

MAX_DETECTIONS = 1000
_BOX_VALUES = 4  # x1, y1, x2, y2.


class ResultError(SkylaneError):
    """A result cannot be encoded, or encoded data is not a valid result."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of a frame, most probable first."""

    class_ids: tuple[int, ...]
    scores: tuple[float, ...]  # Probabilities; exact float32 values.


@dataclass(frozen=True, slots=True)
class Detections:
    """The objects detected in a frame, most probable first."""

    boxes: Boxes  # N×4: x1, y1, x2, y2 in pixels of the original frame.
    class_ids: npt.NDArray[np.uint16]  # N
    scores: npt.NDArray[np.float32]  # N


@dataclass(frozen=True, slots=True)
class Tensors:
    """The raw output tensors of a model, by output name, without the batch dimension."""

    values: Mapping[str, npt.NDArray[Any]]


Result = Mask | Classification | Detections | Tensors


def result_name(task: Task) -> str:
    """Returns the display name of a task's result."""
    return "mask" if task is Task.SEGMENTATION else task.value


def codec_names(task: Task) -> tuple[str, ...]:
    """Returns the codecs available for a task's results; all are lossless."""
    return tuple(MASK_CODECS if task is Task.SEGMENTATION else TENSOR_CODECS)


def encode(result: Result, codec: str) -> Buffer:
    """Encodes a result.

    A mask is encoded by `shared.imaging.mask_codecs`. Other results are encoded as named arrays by
    `shared.messages.tensors`: a classification as `class_ids` (uint16, k) and `scores` (float32, k); detections as
    `boxes` (float32, N×4), `class_ids` (uint16, N) and `scores` (float32, N); tensors under their own names.

    Raises:
        SkylaneError: The codec is unknown, or the result cannot be encoded.
    """
    match result:
        case np.ndarray():
            return mask_codecs.encode(result, codec)
        case Classification():
            scores = np.array(result.scores, np.float32)
            return tensors.encode({"class_ids": np.array(result.class_ids, np.uint16), "scores": scores}, codec)
        case Detections():
            arrays: dict[str, npt.NDArray[Any]] = {
                "boxes": result.boxes,
                "class_ids": result.class_ids,
                "scores": result.scores,
            }
            return tensors.encode(arrays, codec)
    return tensors.encode(result.values, codec)


def decode(task: Task, data: Buffer, codec: str, shape: tuple[int, int] | None) -> Result:
    """Decodes a result of `task`; `shape` is the H×W of a mask. Checks every size before allocating memory.

    Raises:
        SkylaneError: The codec is unknown, or the data is not a valid result of the task.
    """
    match task:
        case Task.SEGMENTATION:
            if shape is None:
                raise ResultError("the mask has no height and width: send its shape")
            return mask_codecs.decode(data, codec, shape)
        case Task.CLASSIFICATION:
            return _classification(tensors.decode(data, codec))
        case Task.DETECTION:
            return _detections(tensors.decode(data, codec))
    return Tensors(tensors.decode(data, codec))


def _classification(arrays: Mapping[str, npt.NDArray[Any]]) -> Classification:
    class_ids = _array(arrays, "class_ids", "uint16")
    scores = _array(arrays, "scores", "float32")
    _check_scored(class_ids, scores, MAX_LABELS)
    if len(np.unique(class_ids)) != len(class_ids) or not len(class_ids):
        raise ResultError("a classification must have at least one class, and each class once")
    return Classification(tuple(class_ids.tolist()), tuple(scores.tolist()))


def _detections(arrays: Mapping[str, npt.NDArray[Any]]) -> Detections:
    class_ids = _array(arrays, "class_ids", "uint16")
    scores = _array(arrays, "scores", "float32")
    boxes = _array(arrays, "boxes", "float32", (_BOX_VALUES,))
    _check_scored(class_ids, scores, MAX_DETECTIONS)
    if len(boxes) != len(class_ids):
        raise ResultError(f"{len(boxes)} boxes for {len(class_ids)} classes: send one box per class")
    if not (np.isfinite(boxes).all() and (boxes[:, :2] <= boxes[:, 2:]).all()):
        raise ResultError("a box has a coordinate that is not finite, or x2 < x1, or y2 < y1: send x1, y1, x2, y2")
    return Detections(boxes, class_ids, scores)


def _array(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, dtype: str, row_shape: tuple[int, ...] = ()
) -> npt.NDArray[Any]:
    """Returns the named array after checking its dtype and its shape of N rows of `row_shape`."""
    array = arrays.get(name)
    if array is None or array.dtype.name != dtype or array.ndim != 1 + len(row_shape) or array.shape[1:] != row_shape:
        given = "missing" if array is None else f"{array.dtype.name} of shape {list(array.shape)}"
        raise ResultError(f"{name} is {given}: send {dtype} of shape {['N', *row_shape]}")
    return array


def _check_scored(class_ids: npt.NDArray[Any], scores: npt.NDArray[Any], max_count: int) -> None:
    if len(class_ids) != len(scores) or len(scores) > max_count:
        raise ResultError(
            f"{len(class_ids)} classes with {len(scores)} scores: send one score each, at most {max_count}"
        )
    if (class_ids >= MAX_LABELS).any():
        raise ResultError(f"class id {class_ids.max()} is over {MAX_LABELS - 1}: no model has so many labels")
    if not (np.isfinite(scores).all() and (np.diff(scores) <= 0).all()):
        raise ResultError("a score is not finite, or larger than the one before: send the highest first")
