"""TensorFlow's TensorProto as an array, and back: what TensorFlow Serving's gRPC carries."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.encoding.compression import Buffer
from shared.encoding.protobuf import message_class
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, TensorsError, cast_checked

_DTYPES = {  # By TensorFlow's number, and the list in which numbers lie that are not in `tensor_content`.
    1: ("float32", "float_val"),
    2: ("float64", "double_val"),
    3: ("int32", "int_val"),
    4: ("uint8", "int_val"),
    5: ("int16", "int_val"),
    6: ("int8", "int_val"),
    9: ("int64", "int64_val"),
    10: ("bool", "bool_val"),
    17: ("uint16", "int_val"),
    19: ("float16", "half_val"),
    22: ("uint32", "uint32_val"),
    23: ("uint64", "uint64_val"),
}
_LISTED = {  # As what the numbers of a list come; those of float_val and double_val lie in it as they are.
    "float_val": "float32",
    "double_val": "float64",
    "int_val": "int32",
    "int64_val": "int64",
    "bool_val": "bool",
    "half_val": "int32",  # The bits.
    "uint32_val": "uint32",
    "uint64_val": "uint64",
}
STRING = 7
_TURN = 1 << 16  # Numbers that are added at a time: no other thread runs meanwhile.
_BFLOAT16 = 14  # Written alone: NumPy knows such numbers only where a library of TensorFlow's has taught it to.
_NUMBERS = {dtype: number for number, (dtype, _) in _DTYPES.items()} | {
    "bfloat16": _BFLOAT16,
    "bytes": STRING,
    "object": STRING,  # So NumPy calls an array of them.
}


def dtype_name(number: int) -> str | None:
    """What NumPy calls TensorFlow's type of that number; "bytes" for strings, None for what is not spoken here."""
    return "bytes" if number == STRING else _DTYPES.get(number, (None,))[0]


def dtype_number(dtype: str) -> int | None:
    """TensorFlow's number of the type that NumPy calls `dtype`, "bytes" or "object" of strings; None: not spoken here."""
    return _NUMBERS.get(dtype)


def content(array: npt.NDArray[Any]) -> Buffer:
    """The `tensor_content` of numbers of a type that is spoken; of little-endian ones in C order without a copy."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def extend_values(proto: Any, array: npt.NDArray[Any], begin: Callable[[int], object]) -> None:
    """Add numbers to a TensorProto in the list of their type, as TensorFlow Serving answers them.

    `begin` is called with how many numbers are added next; it may raise.
    """
    name = "half_val" if array.dtype.name == "bfloat16" else _DTYPES[_NUMBERS[array.dtype.name]][1]
    values = getattr(proto, name)
    flat = np.ascontiguousarray(array).reshape(-1)
    if name == "half_val":
        flat = flat.view(np.uint16)
    for start in range(0, len(flat), _TURN):
        block = flat[start : start + _TURN].tolist()
        begin(len(block))
        values.extend(block)


def to_tensor_proto(array: npt.NDArray[Any], proto: Any = None) -> Any:
    """A `tensorflow.TensorProto` of numbers, or of an array of `bytes` objects, as TensorFlow's own tools write it.

    `proto`: an empty one to be filled, as a part of a larger message is without another copy; None: a new one.
    """
    proto = message_class("tensorflow.TensorProto")() if proto is None else proto
    for side in array.shape:
        proto.tensor_shape.dim.add(size=side)
    if array.dtype == object:
        proto.dtype = STRING
        proto.string_val.extend(array.ravel())
        return proto
    proto.dtype = _NUMBERS[array.dtype.name]
    proto.tensor_content = bytes(content(array))
    return proto


def from_tensor_proto(proto: Any) -> npt.NDArray[Any]:
    """The array in a TensorProto: numbers, or `bytes` objects; all sizes checked before memory is taken.

    Numbers may lie in `tensor_content`, of which the array is a read-only view, or in the list of their type. There, as
    TensorFlow has it, the last one stands for all that follow, and an empty list for zeros.

    Raises:
        TensorsError: it is of a type that is not spoken here, or holds another count of numbers than its shape.
    """
    dtype = dtype_name(proto.dtype)
    if dtype is None:
        raise TensorsError(f"type {proto.dtype} is not spoken here: send numbers, booleans or strings")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if len(shape) > MAX_DIMENSIONS:
        raise TensorsError(f"a shape of {len(shape)} sides: send at most {MAX_DIMENSIONS}")
    if proto.tensor_shape.unknown_rank or any(side < 0 for side in shape):
        raise TensorsError(f"shape {list(shape)} is not known: tell every side")
    count, item = prod(shape), 1 if dtype == "bytes" else np.dtype(dtype).itemsize
    size = count * item
    most = item * prod(max(side, 1) for side in shape)  # A side of 0 makes room for others that no array can have.
    if most > MAX_BYTES:
        raise TensorsError(f"shape {list(shape)} of {dtype} takes more than {MAX_BYTES} bytes: send less")
    if dtype == "bytes":
        return _strings(proto, count).reshape(shape)
    if proto.tensor_content:
        if len(proto.tensor_content) != size:
            raise TensorsError(
                f"{dtype} of shape {list(shape)} takes {size} bytes, not {len(proto.tensor_content)}: send them all"
            )
        return np.frombuffer(proto.tensor_content, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    return _listed(proto, dtype, count).reshape(shape)


def _listed(proto: Any, dtype: str, count: int) -> npt.NDArray[Any]:
    name = _DTYPES[proto.dtype][1]
    values = getattr(proto, name)
    if len(values) > count:
        raise TensorsError(f"holds {len(values)} numbers, its shape {count}: send that many")
    if not values:
        return np.zeros(count, dtype)
    given = np.fromiter(
        values, _LISTED[name], len(values)
    )  # In half the time of np.asarray, which asks each what it is.
    numbers = cast_checked(given, "uint16").view(np.float16) if dtype == "float16" else cast_checked(given, dtype)
    return np.pad(numbers, (0, count - len(numbers)), "edge") if len(numbers) < count else numbers


def _strings(proto: Any, count: int) -> npt.NDArray[Any]:
    if len(proto.string_val) != count:
        raise TensorsError(f"holds {len(proto.string_val)} strings, its shape {count}: send that many")
    found = np.empty(count, object)
    found[:] = list(proto.string_val)
    return found
