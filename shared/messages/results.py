"""Results: what a model says of a frame, by task, and how it is packed, losslessly, for the way back."""

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
_CORNERS = 4


class ResultError(SkylaneError):
    """A result that cannot be packed, or data that is not the result it says."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of a frame, the most probable first."""

    class_ids: tuple[int, ...]
    scores: tuple[float, ...]  # Probabilities; each a float32's value.


@dataclass(frozen=True, slots=True)
class Detections:
    """The boxes found in a frame, the most probable first."""

    boxes: Boxes  # N×4: x1, y1, x2, y2 in pixels of the original frame.
    class_ids: npt.NDArray[np.uint16]  # N
    scores: npt.NDArray[np.float32]  # N


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a model gave, by head, without the batch."""

    values: Mapping[str, npt.NDArray[Any]]


Result = Mask | Classification | Detections | Tensors


def noun(task: Task) -> str:
    """What a task's result is called where people read of it."""
    return "mask" if task is Task.SEGMENTATION else task.value


def codecs(task: Task) -> tuple[str, ...]:
    """How a task's results may be packed; all of it is lossless."""
    return tuple(MASK_CODECS if task is Task.SEGMENTATION else TENSOR_CODECS)


def encode(result: Result, codec: str) -> Buffer:
    """Pack a result.

    A mask as `shared.imaging.mask_codecs` does, all others as named arrays (`shared.messages.tensors`): a classification as `class_ids`
    (uint16, k) and `scores` (float32, k), detections as `boxes` (float32, N×4), `class_ids` (uint16, N) and `scores`
    (float32, N), tensors under their own names.

    Raises:
        SkylaneError: there is no such codec, or the result cannot be packed.
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
    """Unpack a result of `task`; `shape` is a mask's, H×W. Every size is checked before memory is taken.

    Raises:
        SkylaneError: there is no such codec, or the data is no such result.
    """
    match task:
        case Task.SEGMENTATION:
            if shape is None:
                raise ResultError("a mask without its height and width: send its shape")
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
        raise ResultError("a classification names each of its classes once, and at least one: send it so")
    return Classification(tuple(class_ids.tolist()), tuple(scores.tolist()))


def _detections(arrays: Mapping[str, npt.NDArray[Any]]) -> Detections:
    class_ids = _array(arrays, "class_ids", "uint16")
    scores = _array(arrays, "scores", "float32")
    boxes = _array(arrays, "boxes", "float32", (_CORNERS,))
    _check_scored(class_ids, scores, MAX_DETECTIONS)
    if len(boxes) != len(class_ids):
        raise ResultError(f"{len(boxes)} boxes for {len(class_ids)} classes: send one box a class")
    if not (np.isfinite(boxes).all() and (boxes[:, :2] <= boxes[:, 2:]).all()):
        raise ResultError(
            "a box has a corner that is no number, or its corners the wrong way round: send x1, y1, x2, y2"
        )
    return Detections(boxes, class_ids, scores)


def _array(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, dtype: str, rest: tuple[int, ...] = ()
) -> npt.NDArray[Any]:
    """An array of N rows, each of shape `rest`."""
    array = arrays.get(name)
    if array is None or array.dtype.name != dtype or array.ndim != 1 + len(rest) or array.shape[1:] != rest:
        given = "missing" if array is None else f"{array.dtype.name} of shape {list(array.shape)}"
        raise ResultError(f"{name} is {given}: send {dtype} of shape {['N', *rest]}")
    return array


def _check_scored(class_ids: npt.NDArray[Any], scores: npt.NDArray[Any], most: int) -> None:
    if len(class_ids) != len(scores) or len(scores) > most:
        raise ResultError(f"{len(class_ids)} classes with {len(scores)} scores: send one score each, at most {most}")
    if (class_ids >= MAX_LABELS).any():
        raise ResultError(f"class id {class_ids.max()} is over {MAX_LABELS - 1}: no model has as many labels")
    if not (np.isfinite(scores).all() and (np.diff(scores) <= 0).all()):
        raise ResultError("a score is no number, or larger than the one before: send the best first")
