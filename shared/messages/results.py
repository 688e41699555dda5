"""The result types, and checks of decoded arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError
from shared.imaging.boxes import Boxes
from shared.imaging.codec import Mask

MAX_DETECTIONS = 1000


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


@dataclass(frozen=True, slots=True)
class ModelResult:
    """A result as the task of the model decodes it, and the model that computed it."""

    result: Result
    model_version: str
    engine: str  # Engine and precision, such as "openvino bf16".
    model: str = ""  # Its name, if it is not the requested model.


def array_of(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, dtype: str, row_shape: tuple[int, ...] = ()
) -> npt.NDArray[Any]:
    """Returns the named array; raises a SkylaneError unless it has the dtype and N rows of `row_shape`."""
    array = arrays.get(name)
    if array is None or array.dtype.name != dtype or array.ndim != 1 + len(row_shape) or array.shape[1:] != row_shape:
        given = "missing" if array is None else f"{array.dtype.name} of shape {list(array.shape)}"
        raise SkylaneError(f"{name} is {given}: send {dtype} of shape {['N', *row_shape]}")
    return array


def check_class(highest: int, labels: int) -> None:
    """Checks the highest class id of a result against the number of labels of its model; raises a SkylaneError."""
    if highest >= labels:
        raise SkylaneError(f"class id {highest} is over {labels - 1}: the model has {labels} labels")


def check_scored(class_ids: npt.NDArray[Any], scores: npt.NDArray[Any], max_count: int, labels: int) -> None:
    """Checks that each class has a score, the highest first, and is one of the labels; raises a SkylaneError."""
    if len(class_ids) != len(scores) or len(scores) > max_count:
        raise SkylaneError(
            f"{len(class_ids)} classes with {len(scores)} scores: send one score each, at most {max_count}"
        )
    check_class(int(class_ids.max(initial=0)), labels)
    if not (np.isfinite(scores).all() and (np.diff(scores) <= 0).all()):
        raise SkylaneError("a score is not finite, or larger than the one before: send the highest first")
