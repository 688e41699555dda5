"""An inference request of the Open Inference Protocol, independent of its encoding (JSON, JSON with binary data, gRPC)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.inference import CallOrigin, InferenceCall, InferenceReply
from cloud.gateway.common.tensors import Tensor
from shared.encoding.compression import Buffer
from shared.imaging.labels import Labels
from shared.messages.deadline import Deadline
from shared.messages.open_inference_tensors import BYTES, datatype_name, from_raw, string_header, strings

Parameters = Mapping[str, Any]  # Usually strings and numbers; those that are used are checked.

_PIXELS = "UINT8"
_CODEC, _MASK_CODEC, _TIMEOUT = "codec", "mask_codec", "timeout"
_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input with its decoded tensor."""

    name: str
    tensor: Tensor = field(repr=False)
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the caller requests."""

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request."""

    model: str
    version: str | None
    id: str  # Copied to the response.
    parameters: Parameters
    inputs: tuple[InputTensor, ...]
    outputs: tuple[RequestedOutput, ...]  # Empty: all.

    def to_call(self, origin: CallOrigin) -> InferenceCall:
        """Converts the request; its `timeout` parameter may bring the deadline forward.

        Raises:
            ApiError: an input or output has a duplicate, or a parameter is invalid.
        """
        _check_unique("input", [each.name for each in self.inputs])
        _check_unique("output", [each.name for each in self.outputs])
        for each in self.outputs:
            _check_no_shared_memory("output", each.name, each.parameters)
        timeout_us = _parameter(self.parameters, _TIMEOUT, int, "whole microseconds")
        if timeout_us is not None and timeout_us > 0:  # Triton's clients send 0 for no timeout.
            deadline = Deadline.after_ms(timeout_us // 1000, origin.received_ns)
            origin = replace(origin, deadline=min(origin.deadline, deadline))
        tensors: Sequence[InputTensor | RequestedOutput] = (*self.inputs, *self.outputs)
        parameters = [*(each.parameters for each in tensors), self.parameters]
        return InferenceCall(
            origin=origin,
            model=self.model,
            version=self.version,
            inputs={each.name: each.tensor for each in self.inputs},
            outputs=tuple(each.name for each in self.outputs),
            codec=_first(parameters, _CODEC),
            mask_codec=_first(parameters, _MASK_CODEC) or "png",
        )


def read_input(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Parameters,
    *,
    raw: Buffer | None,
    read_values: Callable[[], Tensor],
) -> InputTensor:
    """Decodes an input from its raw encoding, without copying it, or else with `read_values`.

    Raises:
        ApiError: the datatype is that of no input, or the data does not match the shape.
    """
    _check_no_shared_memory("input", name, parameters)
    with converting_errors(ErrorCode.INVALID, f"input {name[:40]!r}: "):
        if datatype not in (_PIXELS, BYTES):
            raise InvalidError(f"input {name[:40]!r} is {datatype[:40]}: send {_PIXELS}, or {BYTES} with images")
        if raw is None:
            return InputTensor(name, read_values(), parameters)
        if datatype == BYTES:
            return InputTensor(name, strings(memoryview(raw), _string_count(name, shape)), parameters)
        return InputTensor(name, from_raw(memoryview(raw), datatype, shape), parameters)


def _check_no_shared_memory(kind: str, name: str, parameters: Parameters) -> None:
    if _SHARED_MEMORY in parameters:
        raise InvalidError(
            f"{kind} {name[:40]!r} is in shared memory, which is not supported: send the data in the request"
        )


def _string_count(name: str, shape: Sequence[int]) -> int:
    """The number of strings in a shape [n], or [n, 1] as sent by clients that treat the batch separately."""
    if len(shape) not in (1, 2) or any(side < 0 for side in shape) or shape[1:] not in ([], [1]):
        raise InvalidError(f"input {name[:40]!r}: {BYTES} of shape {list(shape[:8])}: send [n], one string per image")
    return prod(shape)


def _first(parameters: Sequence[Parameters], name: str) -> str | None:
    """The value of the first parameter with a name."""
    values = (_parameter(each, name, str, "a string") for each in parameters)
    return next((value for value in values if value is not None), None)


def _parameter(parameters: Parameters, name: str, kind: type, expected: str) -> Any:
    value = parameters.get(name)
    if value is not None and type(value) is not kind:
        raise InvalidError(f"parameter {name} is {str(value)[:40]!r}: send {expected}")
    return value


def _check_unique(kind: str, names: Sequence[str]) -> None:
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicates:
        raise InvalidError(f"duplicate {kind} {', '.join(duplicates)[:200]}: send each once")


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
