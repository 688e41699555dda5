"""Results: what a model says of a frame, by task, and how it is packed, losslessly, for the way back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared import masks
from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.masks import Mask
from shared.model_card import Task


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

    boxes: npt.NDArray[np.float32]  # N×4: x1, y1, x2, y2 in pixels of the original frame.
    class_ids: npt.NDArray[np.uint16]  # N
    scores: npt.NDArray[np.float32]  # N


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a model gave, by head, without the batch."""

    values: Mapping[str, npt.NDArray[Any]]


Result = Mask | Classification | Detections | Tensors


def encode(result: Result, codec: str) -> bytes:
    """Pack a result.

    Raises:
        SkylaneError: there is no such codec, or the result cannot be packed.
    """
    if isinstance(result, np.ndarray):
        return masks.encode(result, codec)
    raise ResultError(f"no way to pack {type(result).__name__}")


def decode(task: Task, data: Buffer, codec: str, shape: tuple[int, int] | None) -> Result:
    """Unpack a result of `task`; `shape` is a mask's, H×W. Every size is checked before memory is taken.

    Raises:
        SkylaneError: there is no such codec, or the data is no such result.
    """
    if task is Task.SEGMENTATION and shape is not None:
        return masks.decode(data, codec, shape)
    raise ResultError(f"no way to unpack {task}")
