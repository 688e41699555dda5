"""An inference request of the Open Inference Protocol, independent of its encoding (JSON, JSON with binary data, gRPC)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from cloud.gateway.common.errors import ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.inference import CallOrigin, InferenceCall
from cloud.gateway.common.tensors import Tensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, from_raw, strings
from shared.messages.deadline import Deadline

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
