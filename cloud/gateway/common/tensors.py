"""The tensors of inference calls, independent of the protocol: names, types and shapes, and the size limit of outputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.serving.errors import ApiError, ErrorCode
from shared.compression import Buffer
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.task import task_named

INPUT = "input"
IMAGES = "image_bytes"
RESULTS = "result_bytes"
ANY = -1  # A dimension of variable size.

Tensor = npt.NDArray[Any] | Sequence[Buffer]  # Numbers, or byte strings.


def byte_size(tensor: Tensor) -> int:
    """Returns the number of bytes in a tensor."""
    return tensor.nbytes if isinstance(tensor, np.ndarray) else sum(map(len, tensor))


class TensorSpec(NamedTuple):
    """Name, type and shape of a tensor."""

    name: str
    dtype: str | None  # NumPy's name, or "bytes" for strings; None: unknown until the model has run.
    shape: tuple[int, ...] | None  # None: unknown, as above.


PACKED = TensorSpec(RESULTS, "bytes", (ANY,))
ENCODED = TensorSpec(IMAGES, "bytes", (ANY,))


def pixels(card: ModelCard) -> TensorSpec:
    """Returns the spec of the input that holds pixels."""
    return TensorSpec(INPUT, "uint8", (ANY, card.height, card.width, 3))


def output_specs(model: Model) -> tuple[TensorSpec, ...]:
    """Returns the specs of a model's outputs: those that its task declares, else the types that its warm-up produced."""
    card, heads, task = model.card, model.manifest.heads, task_named(model.card.task)
    sizes = {"height": card.height, "width": card.width, "labels": len(card.labels.names)}
    known: dict[str, TensorSpec] = {}
    if task.optional_heads.keys().isdisjoint(heads):  # They change the shape of the others.
        for name, head in task.heads.items():
            shape = (sizes[side] if isinstance(side, str) else side for side in head.shape)
            known[name] = TensorSpec(name, head.dtype, (ANY, *shape))
    if not known:
        known = {name: TensorSpec(name, each.dtype, (ANY, *each.shape)) for name, each in model.output_types.items()}
    return tuple(known.get(head, TensorSpec(head, None, None)) for head in heads)


class SizeBudget:
    """The bytes that a response may still grow by. It is charged piece by piece, before the whole response exists."""

    def __init__(self, max_bytes: int, encoding: str = "", alternative: str = "") -> None:
        """`encoding` and `alternative` complete the error message: how outputs are written, and what to request instead."""
        self._remaining = max_bytes
        self._message = (
            f"outputs of more than {max_bytes} bytes{encoding}: request fewer outputs or images{alternative}"
        )

    def charge(self, size: int) -> None:
        """Subtracts `size` bytes, or raises an `ApiError` if fewer remain."""
        self._remaining -= size
        if self._remaining < 0:
            raise ApiError(ErrorCode.UNPROCESSABLE, self._message)

    def charged(self, text: bytes) -> bytes:
        """Charges the size of `text` and returns it; raises as `charge`."""
        self.charge(len(text))
        return text
