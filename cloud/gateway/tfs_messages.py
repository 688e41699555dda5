"""TensorFlow Serving's PredictRequest; what is large in it is read by hand."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloud.gateway.calls import Tensor
from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.small_messages import parse
from shared.compression import Buffer
from shared.large_fields import FieldsError, cut, split
from shared.tensorflow_tensors import STRING, dtype_name
from shared.tensors import MAX_DIMENSIONS, MAX_TENSORS
from shared.varints import VarintsError, unpack_bytes

UINT8 = 4

_INPUTS = 2  # The field's number: a map, of which an entry is
_KEY, _VALUE = 1, 2  # a key and a value.
_CONTENT, _INT_VAL, _STRING_VAL = 4, 7, 8  # Fields of TensorProto.
_NAME_BYTES = 200


class PredictRequest(NamedTuple):
    """A PredictRequest that has been read."""

    model: str
    version: int | None
    label: str | None
    signature: str
    inputs: Mapping[str, Tensor]  # Views of the request's bytes.
    outputs: tuple[str, ...]  # Empty: all.


def read_predict(data: Buffer) -> PredictRequest:
    """Read a PredictRequest.

    Raises:
        RefusedError: it is none, has too many inputs, or a tensor is no uint8 and no list of strings.
    """
    try:
        others, entries = split(data, _INPUTS)
        if len(entries) > MAX_TENSORS:  # Each may hold as many fields as the whole.
            raise RefusedError(Kind.INVALID, f"{len(entries)} inputs: send at most {MAX_TENSORS}")
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


def _shown(shape: Sequence[int]) -> str:
    return str(list(shape[: MAX_DIMENSIONS + 1]))
