"""Writes arrays as JSON, in pieces: other threads can run between them, and a size limit applies before all is written."""

import json
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cloud.gateway.common.tensors import SizeBudget

_CHUNK = 1 << 13  # Numbers that are written at once, which takes at most a millisecond.


def write_array(array: npt.NDArray[Any], budget: SizeBudget) -> bytes:
    """Writes an array as nested JSON lists, with every number exact.

    Raises:
        ApiError: the text exceeds the budget.
    """
    if array.ndim == 0:
        return budget.charged(_text(array))
    row_size = array[:1].size
    if array.ndim > 1 and row_size > _CHUNK:
        return b"[" + b",".join(write_array(each, budget) for each in array) + b"]"
    rows = _CHUNK // max(1, row_size)
    chunks = (budget.charged(_text(array[at : at + rows])[1:-1]) for at in range(0, len(array), rows))
    return b"[" + b",".join(chunks) + b"]"


def _text(array: npt.NDArray[Any]) -> bytes:
    """Writes numbers; NaN and infinity as Python and TensorFlow Serving write them, although JSON has neither."""
    if array.dtype.kind in "iub" or np.isfinite(array).all():
        return msgspec.json.encode(array.tolist())
    return json.dumps(array.tolist(), separators=(",", ":")).encode()
