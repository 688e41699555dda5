"""Conversion between NumPy arrays and `tensorflow.TensorProto`, the tensor of TensorFlow Serving's gRPC API."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.messages.protobuf import message_class
from shared.messages.tensors import (
    MAX_BYTES,
    MAX_DIMENSIONS,
    NUMBER_TYPES,
    TensorsError,
    cast_checked,
    little_endian,
    objects,
)

_TYPES = {each.number: each for each in NUMBER_TYPES}
_FIELD_DTYPES = {  # The dtype of the elements of each field.
    "float_val": "float32",
    "double_val": "float64",
    "int_val": "int32",
    "int64_val": "int64",
    "bool_val": "bool",
    "half_val": "int32",  # The bits of a half float.
    "uint32_val": "uint32",
    "uint64_val": "uint64",
}
STRING = 7
_BLOCK = 1 << 16  # Values added at a time; each addition holds the GIL.
_BFLOAT16 = 14  # Only encoded: NumPy has no bfloat16 unless a TensorFlow library has registered it.
_NUMBERS = {each.dtype: each.number for each in NUMBER_TYPES} | {
    "bfloat16": _BFLOAT16,
    "bytes": STRING,
    "object": STRING,  # NumPy's dtype of an array of `bytes` objects.
}


def dtype_name(number: int) -> str | None:
    """Returns NumPy's name of a TensorFlow type: "bytes" for strings, None for an unsupported type."""
    return "bytes" if number == STRING else _TYPES[number].dtype if number in _TYPES else None


def dtype_number(dtype: str) -> int | None:
    """Returns TensorFlow's number of a NumPy dtype ("bytes" or "object" for strings), or None if it is unsupported."""
    return _NUMBERS.get(dtype)


def extend_values(proto: Any, array: npt.NDArray[Any], before_block: Callable[[int], object]) -> None:
    """Appends numbers to the value field of their type (`float_val` etc.), as in the replies of TensorFlow Serving.

    `before_block` is called with the size of each block before it is added; it may raise to stop.
    """
    name = "half_val" if array.dtype.name == "bfloat16" else _TYPES[_NUMBERS[array.dtype.name]].field
    values = getattr(proto, name)
    flat = np.ascontiguousarray(array).reshape(-1)
    if name == "half_val":
        flat = flat.view(np.uint16)
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK].tolist()
        before_block(len(block))
        values.extend(block)


def to_tensor_proto(array: npt.NDArray[Any], proto: Any = None) -> Any:
    """Converts an array of numbers or of `bytes` objects to a `tensorflow.TensorProto`.

    `proto`: an empty message to fill, such as a field of a larger message; by default a new one.
    """
    proto = message_class("tensorflow.TensorProto")() if proto is None else proto
    for side in array.shape:
        proto.tensor_shape.dim.add(size=side)
    if array.dtype == object:
        proto.dtype = STRING
        proto.string_val.extend(array.ravel())
        return proto
    proto.dtype = _NUMBERS[array.dtype.name]
    proto.tensor_content = bytes(little_endian(array))
    return proto


def from_tensor_proto(proto: Any) -> npt.NDArray[Any]:
    """Converts a TensorProto to an array of numbers or of `bytes` objects; checks all sizes before allocating memory.

    The array is a read-only view of `tensor_content` if that is set. Otherwise the values come from the field of their
    type, where, as in TensorFlow, the last value is repeated to fill the shape and an empty field means zeros.

    Raises:
        TensorsError: The type is unsupported, or the number of values does not match the shape.
    """
    dtype = dtype_name(proto.dtype)
    if dtype is None:
        raise TensorsError(f"type {proto.dtype} is not supported: send numbers, booleans or strings")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if len(shape) > MAX_DIMENSIONS:
        raise TensorsError(f"a shape of {len(shape)} dimensions: send at most {MAX_DIMENSIONS}")
    if proto.tensor_shape.unknown_rank or any(side < 0 for side in shape):
        raise TensorsError(f"shape {list(shape)} is not known: give every dimension")
    count, item_bytes = prod(shape), 1 if dtype == "bytes" else np.dtype(dtype).itemsize
    size = count * item_bytes
    # A dimension of 0 counts as 1: otherwise the others could be larger than any array allows.
    if item_bytes * prod(max(side, 1) for side in shape) > MAX_BYTES:
        raise TensorsError(f"shape {list(shape)} of {dtype} takes more than {MAX_BYTES} bytes: send less")
    if dtype == "bytes":
        if len(proto.string_val) != count:
            raise TensorsError(f"has {len(proto.string_val)} strings, its shape {count}: send that many")
        return objects(list(proto.string_val), shape)
    if proto.tensor_content:
        if len(proto.tensor_content) != size:
            raise TensorsError(
                f"{dtype} of shape {list(shape)} takes {size} bytes, not {len(proto.tensor_content)}: send them all"
            )
        return np.frombuffer(proto.tensor_content, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return _field_values(proto, dtype, count).reshape(shape)


def _field_values(proto: Any, dtype: str, count: int) -> npt.NDArray[Any]:
    name = _TYPES[proto.dtype].field
    values = getattr(proto, name)
    if len(values) > count:
        raise TensorsError(f"has {len(values)} values, its shape {count}: send that many")
    if not values:
        return np.zeros(count, dtype)
    # np.fromiter takes half the time of np.asarray, which inspects the type of every element.
    given = np.fromiter(values, _FIELD_DTYPES[name], len(values))
    numbers = cast_checked(given, "uint16").view(np.float16) if dtype == "float16" else cast_checked(given, dtype)
    return np.pad(numbers, (0, count - len(numbers)), "edge") if len(numbers) < count else numbers
