"""An answer of the Open Inference Protocol, before it is written as JSON or for gRPC."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Reply, Tensor
from cloud.gateway.open_inference.request import InferRequest
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, datatype_of, is_supported, string_header
from shared.imaging.labels import Labels

_CLASSIFICATION = "classification"
_BATCH_AND_CLASSES = 2  # Sides.


class OutputTensor(NamedTuple):
    """An output by its name."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Tensor

    def raw(self) -> list[Buffer]:
        """Its raw form in parts, numbers without a copy: little-endian in C order, each string behind its length."""
        if isinstance(self.values, np.ndarray):
            little = np.ascontiguousarray(self.values, self.values.dtype.newbyteorder("<"))
            return [little.reshape(-1).view(np.uint8).data]
        return [part for each in self.values for part in (string_header(each), each)]


def outputs(request: InferRequest, reply: Reply) -> tuple[OutputTensor, ...]:
    """What a reply holds, in the order in which it was asked for.

    Raises:
        RefusedError: an output has no type that the protocol knows, or no classes where they are asked for.
    """
    tops = {wanted.name: wanted.parameters.get(_CLASSIFICATION) for wanted in request.outputs}
    return tuple(_output(name, values, tops.get(name), reply.card.labels) for name, values in reply.outputs.items())


def _output(name: str, values: Tensor, top: Any, labels: Labels) -> OutputTensor:
    if top not in (None, 0):
        values = _classes(name, values, top, labels)
        return OutputTensor(name, BYTES, values.shape, values.reshape(-1).tolist())
    if not isinstance(values, np.ndarray):
        return OutputTensor(name, BYTES, (len(values),), values)
    if not is_supported(values):
        raise RefusedError(
            Kind.UNPROCESSABLE,
            f"output {name} is {values.dtype.name}, which the protocol has no name for: ask for others",
        )
    return OutputTensor(name, datatype_of(values), values.shape, values)


def _classes(name: str, values: Tensor, top: Any, labels: Labels) -> npt.NDArray[Any]:
    """The `top` classes of each picture, the best first, as Triton writes them: `score:class id:name`; n×top strings."""
    if type(top) is not int or top < 0:
        raise RefusedError(Kind.INVALID, f"{_CLASSIFICATION} is {str(top)[:40]!r}: give how many classes you want")
    if not isinstance(values, np.ndarray) or values.ndim != _BATCH_AND_CLASSES or values.dtype.kind not in "fiu":
        raise RefusedError(
            Kind.INVALID, f"output {name} has no score for each class: ask for it without {_CLASSIFICATION}"
        )
    best = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :top]
    told = [
        [_class(row[place], place, labels.names) for place in places] for row, places in zip(values, best, strict=True)
    ]
    found = np.empty(best.shape, object)
    found[:] = told
    return found


def _class(score: Any, class_id: int, names: Sequence[str]) -> bytes:
    name = f":{names[class_id]}" if class_id < len(names) else ""
    return f"{score:f}:{class_id}{name}".encode()
