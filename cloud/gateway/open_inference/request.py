"""A request of the Open Inference Protocol, however it came: as JSON with or without binary data, or by gRPC."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Call, Tensor
from shared.encoding.compression import Buffer
from shared.encoding.open_inference_tensors import BYTES, from_raw, strings
from shared.messages.frame import FrameMessage
from shared.messages.tensors import TensorsError

Parameters = Mapping[str, str | bool | int | float]

_CODEC, _MASK_CODEC, _TIMEOUT = "codec", "mask_codec", "timeout"
_LONGEST_MS = 86_400_000
_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input, read."""

    name: str
    tensor: Tensor = field(repr=False)
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that is asked for."""

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a caller asks of a model."""

    model: str
    version: str | None
    id: str  # Given back.
    parameters: Parameters
    inputs: tuple[InputTensor, ...]
    outputs: tuple[WantedOutput, ...]  # Empty: all.

    def call(
        self,
        door: str,
        caller: str,
        *,
        received_ns: int,
        max_reply_bytes: int,
        budget_ms: int | None,
        frame: FrameMessage | None,
    ) -> Call:
        """The same in the words of no protocol.

        Raises:
            RefusedError: an input or output comes twice, or a parameter is none.
        """
        _check_once("input", [each.name for each in self.inputs])
        _check_once("output", [each.name for each in self.outputs])
        for each in self.outputs:
            check_here("output", each.name, each.parameters)
        timeout = _parameter(self.parameters, _TIMEOUT, int, "whole microseconds")
        if timeout is not None and timeout > 0:  # Triton's clients send 0 for none.
            budget_ms = min(timeout // 1000, _LONGEST_MS if budget_ms is None else budget_ms)
        named = [each.parameters for each in self.inputs] + [each.parameters for each in self.outputs]
        named.append(self.parameters)
        return Call(
            door=door,
            caller=caller,
            model=self.model,
            version=self.version,
            inputs={each.name: each.tensor for each in self.inputs},
            outputs=tuple(each.name for each in self.outputs),
            codec=_first(named, _CODEC),
            mask_codec=_first(named, _MASK_CODEC) or "png",
            received_ns=received_ns,
            max_reply_bytes=max_reply_bytes,
            budget_ms=budget_ms,
            frame=frame,
        )


def read_input(
    name: str, datatype: str, shape: Sequence[int], raw: Buffer, parameters: Parameters | None = None
) -> InputTensor:
    """An input in its raw form: numbers are a read-only view, strings views of theirs.

    Raises:
        RefusedError: it is of a datatype that is not spoken, or of another size than its shape.
    """
    parameters = parameters or {}
    if datatype == BYTES:
        count = _count(name, shape)
        return InputTensor(name, told(name, lambda: strings(memoryview(raw), count)), parameters)
    return InputTensor(name, told(name, lambda: from_raw(memoryview(raw), datatype, shape)), parameters)


def check_here(noun: str, name: str, parameters: Container[str]) -> None:
    """Check that a tensor's data travels with the call.

    Raises:
        RefusedError: it lies in memory that the caller wants to share.
    """
    if _SHARED_MEMORY in parameters:
        raise RefusedError(
            Kind.INVALID, f"{noun} {name[:40]!r} lies in shared memory, which is not offered: have the data sent"
        )


def told(name: str, read: Callable[[], Any]) -> Any:
    """What `read` gives; what is wrong with it is told of the input.

    Raises:
        RefusedError: it could not be read.
    """
    try:
        return read()
    except TensorsError as error:
        raise RefusedError(Kind.INVALID, f"input {name[:40]!r}: {error}") from error


def _count(name: str, shape: Sequence[int]) -> int:
    """How many strings a shape holds: [n], or [n, 1] as clients have it that keep the batch apart."""
    if len(shape) not in (1, 2) or any(side < 0 for side in shape) or shape[1:] not in ([], [1]):
        raise RefusedError(
            Kind.INVALID, f"input {name[:40]!r}: {BYTES} of shape {list(shape[:8])}: send [n], one a picture"
        )
    return prod(shape)


def _first(parameters: Sequence[Parameters], name: str) -> str | None:
    """The first of that name."""
    found = (_parameter(each, name, str, "a text") for each in parameters)
    return next((each for each in found if each is not None), None)


def _parameter(parameters: Parameters, name: str, kind: type, what: str) -> Any:
    given = parameters.get(name)
    if given is not None and type(given) is not kind:
        raise RefusedError(Kind.INVALID, f"parameter {name} is {str(given)[:40]!r}: give {what}")
    return given


def _check_once(noun: str, names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise RefusedError(Kind.INVALID, f"{noun} {', '.join(twice)[:200]} comes twice: send each once")
