"""TensorFlow Serving's PredictRequest and PredictResponse; what is large in them is read and written by hand."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.calls import Tensor
from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.small_messages import parse
from shared.compression import Buffer
from shared.large_fields import FieldsError, cut, head, split
from shared.protocol_buffers import message_class
from shared.tensorflow_tensors import STRING, dtype_name, dtype_number, to_tensor_proto
from shared.tensors import MAX_DIMENSIONS
from shared.varints import VarintsError, unpack_bytes

UINT8 = 4

_INPUTS, _OUTPUTS = 2, 1  # Fields of the request and of the response: maps, of which an entry is a key and a
_KEY, _VALUE = 1, 2  # value.
_SHAPE, _CONTENT, _INT_VAL, _STRING_VAL = 2, 4, 7, 8  # Fields of TensorProto.
_MODEL_SPEC = 2  # Of the response.
_LISTED = 4096  # Numbers of an output that go in the list of their type, as TensorFlow Serving has it.
_NAME_BYTES = 200


class PredictRequest(NamedTuple):
    """A PredictRequest that has been read."""

    model: str
    version: int | None
    label: str | None
    signature: str
    inputs: Mapping[str, Tensor]  # Views of the request's bytes.
    outputs: tuple[str, ...]  # Empty: all.


def read_predict(data: bytes) -> PredictRequest:
    """Read a PredictRequest.

    Raises:
        RefusedError: it is none, or a tensor is no uint8 and no list of strings.
    """
    try:
        others, entries = split(data, _INPUTS)
        request = parse("tensorflow.serving.PredictRequest", others)
        inputs = dict(_entry(entry) for entry in entries)
    except FieldsError as error:
        raise RefusedError(Kind.INVALID, f"not a tensorflow.serving.PredictRequest: {error}") from error
    spec = request.model_spec
    return PredictRequest(
        spec.name,
        spec.version.value if spec.HasField("version") else None,
        spec.version_label if spec.HasField("version_label") else None,
        spec.signature_name,
        inputs,
        tuple(request.output_filter),
    )


def write_predict(outputs: Mapping[str, Tensor], spec: Any) -> bytes:
    """A PredictResponse; `spec`: the ModelSpec of what answered.

    Numbers go in `tensor_content`, up to 4,096 of them in the list of their type, where some clients look for them.
    """
    parts: list[Buffer] = []
    for name, tensor in outputs.items():
        key = name.encode()
        value = _tensor_parts(tensor)
        size = sum(map(len, value))
        before = b"".join((head(_KEY, len(key)), key, head(_VALUE, size)))
        parts += (head(_OUTPUTS, len(before) + size), before, *value)
    told = spec.SerializeToString()
    parts += (head(_MODEL_SPEC, len(told)), told)
    return b"".join(parts)


def _entry(entry: memoryview) -> tuple[str, Tensor]:
    """An input: its name, and its tensor.

    Raises:
        FieldsError: it is no entry of that map.
        RefusedError: its tensor is none that is taken.
    """
    others, values = split(entry, _VALUE)
    name = _name(others)
    return name, _tensor(name, values[-1] if values else memoryview(b""))


def _name(entry: bytes) -> str:
    _, keys = split(entry, _KEY)
    key = bytes(keys[-1]) if keys else b""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise FieldsError(f"the name {key[:_NAME_BYTES]!r} is no UTF-8: send it so") from error


def _tensor(name: str, data: memoryview) -> Tensor:
    others, large = cut(data, _CONTENT, _INT_VAL, _STRING_VAL)
    told = parse("tensorflow.TensorProto", others)
    shape = tuple(dim.size for dim in told.tensor_shape.dim)
    if told.dtype not in (UINT8, STRING):
        given = dtype_name(told.dtype) or f"type {told.dtype}"
        raise RefusedError(Kind.INVALID, f"{name[:_NAME_BYTES]} is {given}: send uint8 pixels, or strings")
    if told.tensor_shape.unknown_rank or len(shape) > MAX_DIMENSIONS or any(side < 0 for side in shape):
        raise RefusedError(
            Kind.INVALID,
            f"{name[:_NAME_BYTES]} has shape {_shown(shape)}: tell every side, of at most {MAX_DIMENSIONS}",
        )
    if told.dtype == STRING:
        return _strings(name, shape, large[_STRING_VAL])
    return _pixels(name, shape, large[_CONTENT], large[_INT_VAL])


def _strings(name: str, shape: tuple[int, ...], strings: list[memoryview]) -> Tensor:
    if shape != (len(strings),):
        raise RefusedError(
            Kind.INVALID,
            f"{name[:_NAME_BYTES]} holds {len(strings)} strings, its shape is {_shown(shape)}: send shape [n] and n strings",
        )
    return strings


def _pixels(
    name: str, shape: tuple[int, ...], contents: list[memoryview], lists: list[memoryview]
) -> npt.NDArray[np.uint8]:
    try:
        numbers = np.frombuffer(contents[-1], np.uint8) if contents else unpack_bytes(b"".join(lists))
    except VarintsError as error:
        raise RefusedError(Kind.INVALID, f"{name[:_NAME_BYTES]}: {error}") from error
    try:
        return numbers.reshape(shape)
    except ValueError as error:
        raise RefusedError(
            Kind.INVALID,
            f"{name[:_NAME_BYTES]} holds {len(numbers)} numbers, its shape {_shown(shape)} takes {prod(shape)}: send all",
        ) from error


def _tensor_parts(tensor: Tensor) -> Sequence[Buffer]:
    """A TensorProto in parts."""
    proto = message_class("tensorflow.TensorProto")
    if not isinstance(tensor, np.ndarray):
        told = proto(dtype=STRING, tensor_shape={"dim": [{"size": len(tensor)}]}).SerializeToString()
        return [told, *(part for text in tensor for part in (head(_STRING_VAL, len(text)), text))]
    if tensor.size <= _LISTED:
        return [to_tensor_proto(tensor, listed=True).SerializeToString()]
    told = proto(
        dtype=dtype_number(tensor.dtype.name), tensor_shape={"dim": [{"size": side} for side in tensor.shape]}
    ).SerializeToString()
    content = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
    return [told, head(_CONTENT, len(content)), content]


def _shown(shape: Sequence[int]) -> str:
    return str(list(shape[: MAX_DIMENSIONS + 1]))
