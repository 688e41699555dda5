"""The output tensors of a response of the Open Inference Protocol, independent of its encoding (JSON or gRPC)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.common.inference import InferenceReply
from cloud.gateway.common.tensors import Tensor
from cloud.gateway.open_inference.request import InferRequest
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, datatype_name, string_header
from shared.imaging.labels import Labels

_CLASSIFICATION = "classification"


class OutputTensor(NamedTuple):
    """An output with its values."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Tensor

    def raw(self) -> list[Buffer]:
        """Returns the raw encoding in parts: little-endian numbers in C order, without a copy, or length-prefixed strings."""
        if isinstance(self.values, np.ndarray):
            little_endian = np.ascontiguousarray(self.values, self.values.dtype.newbyteorder("<"))
            return [little_endian.reshape(-1).view(np.uint8).data]
        return [part for each in self.values for part in (string_header(each), each)]


def output_tensors(request: InferRequest, reply: InferenceReply) -> tuple[OutputTensor, ...]:
    """Returns the outputs of a reply in the requested order.

    Raises:
        ApiError: the protocol has no type for an output, or classes are requested of an output without scores.
    """
    class_counts = {output.name: output.parameters.get(_CLASSIFICATION) for output in request.outputs}
    return tuple(
        _top_classes(name, values, class_counts[name], reply.card.labels)
        if class_counts.get(name)
        else _output(name, values)
        for name, values in reply.outputs.items()
    )


def _output(name: str, values: Tensor) -> OutputTensor:
    if not isinstance(values, np.ndarray):
        return OutputTensor(name, BYTES, (len(values),), values)
    datatype = datatype_name(values.dtype.name)
    if datatype is None:
        raise ApiError(
            ErrorCode.UNPROCESSABLE,
            f"output {name} has the type {values.dtype.name}, which the protocol does not have: request other outputs",
        )
    return OutputTensor(name, datatype, values.shape, values)


def _top_classes(name: str, values: Tensor, class_count: Any, labels: Labels) -> OutputTensor:
    """The best classes of each image as strings `score:class id:name`, as Triton writes them; shape images×classes."""
    if type(class_count) is not int or class_count < 0:
        raise InvalidError(f"{_CLASSIFICATION} is {str(class_count)[:40]!r}: send the number of classes")
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":  # noqa: PLR2004
        raise InvalidError(f"output {name} has no score per class: request it without {_CLASSIFICATION}")
    best = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :class_count]
    texts = [
        _class_text(scores[class_id], class_id, labels.names)
        for scores, class_ids in zip(values, best, strict=True)
        for class_id in class_ids
    ]
    return OutputTensor(name, BYTES, best.shape, texts)


def _class_text(score: Any, class_id: int, names: Sequence[str]) -> bytes:
    name = f":{names[class_id]}" if class_id < len(names) else ""
    return f"{score:f}:{class_id}{name}".encode()
