"""The Open Inference Protocol's tensors as arrays, and back."""

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.encoding.compression import Buffer
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, TensorsError, cast_checked

BYTES = "BYTES"
MAX_STRINGS = 4096  # Of one tensor: four bytes can be one, and each takes two hundred here.

_DTYPES = {  # By datatype, and the list in which numbers lie that are not raw; half floats are always raw.
    "BOOL": ("bool", "bool_contents"),
    "UINT8": ("uint8", "uint_contents"),
    "UINT16": ("uint16", "uint_contents"),
    "UINT32": ("uint32", "uint_contents"),
    "UINT64": ("uint64", "uint64_contents"),
    "INT8": ("int8", "int_contents"),
    "INT16": ("int16", "int_contents"),
    "INT32": ("int32", "int_contents"),
    "INT64": ("int64", "int64_contents"),
    "FP16": ("float16", None),
    "FP32": ("float32", "fp32_contents"),
    "FP64": ("float64", "fp64_contents"),
}
_LISTED = {  # As what the numbers of a list come.
    "bool_contents": "bool",
    "int_contents": "int32",
    "int64_contents": "int64",
    "uint_contents": "uint32",
    "uint64_contents": "uint64",
    "fp32_contents": "float32",
    "fp64_contents": "float64",
}
_DATATYPES = {dtype: datatype for datatype, (dtype, _) in _DTYPES.items()}
_LENGTH = struct.Struct("<I")  # In front of each string.


def dtype_name(datatype: str) -> str | None:
    """What NumPy calls a datatype; "bytes" for strings, None for what is not spoken here."""
    return "bytes" if datatype == BYTES else _DTYPES.get(datatype, (None,))[0]


def datatype_name(dtype: str) -> str | None:
    """The protocol's name of what NumPy calls so, BYTES of "bytes"; None where it has none."""
    return BYTES if dtype == "bytes" else _DATATYPES.get(dtype)


def datatype_of(array: npt.NDArray[Any]) -> str:
    """The protocol's name of an array's type; an array of `bytes` objects holds BYTES."""
    return BYTES if array.dtype == object else _DATATYPES[array.dtype.name]


def is_supported(array: npt.NDArray[Any]) -> bool:
    """Whether the protocol has a name for the type of an array of numbers."""
    return datatype_name(array.dtype.name) is not None


def string_header(text: Buffer) -> bytes:
    """What stands before a string in the raw form of BYTES: its length."""
    return _LENGTH.pack(len(text))


def to_raw(array: npt.NDArray[Any]) -> bytes:
    """The array's raw form: numbers in C order, little-endian; strings each with its length in four bytes before it."""
    if array.dtype == object:
        return b"".join(part for text in array.ravel() for part in (string_header(text), text))
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def from_raw(raw: Buffer, datatype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """The array in a raw form, a read-only view of numbers or `bytes` objects; sizes checked before memory is taken.

    Raises:
        TensorsError: it is of a datatype that is not spoken here, or has another size than its shape.
    """
    dtype, count = check_shape(datatype, shape)
    if dtype == "bytes":
        return _objects([bytes(each) for each in strings(raw, count)], shape)
    size = count * np.dtype(dtype).itemsize
    if len(raw) != size:
        raise TensorsError(f"{datatype} of shape {list(shape)} takes {size} bytes, not {len(raw)}: send them all")
    numbers: npt.NDArray[Any] = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    numbers.flags.writeable = False
    return numbers


def from_contents(contents: Any, datatype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """The array in an `inference.InferTensorContents`, as clients send it that write no raw form.

    Raises:
        TensorsError: as `from_raw`; a number is none of its datatype.
    """
    dtype, count = check_shape(datatype, shape)
    field = "bytes_contents" if dtype == "bytes" else _DTYPES[datatype][1]
    if field is None:
        raise TensorsError(f"{datatype} has no list in contents: send it raw")
    values = getattr(contents, field)
    check_count(field, len(values), count, shape)
    if dtype == "bytes":
        return _objects(list(values), shape)
    given = np.fromiter(values, _LISTED[field], count)  # A sequence would be made a list of objects first.
    return cast_checked(given, dtype).reshape(shape)


def check_count(field: str, given: int, count: int, shape: Sequence[int]) -> None:
    """Check that a list in contents holds as many as its shape takes.

    Raises:
        TensorsError: it does not.
    """
    if given != count:
        raise TensorsError(f"contents hold {given} in {field}, shape {list(shape)} takes {count}: send that many")


def check_shape(datatype: str, shape: Sequence[int]) -> tuple[str, int]:
    """What NumPy calls the datatype, and how many of it a shape holds.

    Raises:
        TensorsError: it is not spoken here, or nothing has that shape.
    """
    dtype = dtype_name(datatype)
    if dtype is None:
        raise TensorsError(f"datatype {datatype[:40]!r} is not spoken here: send {', '.join((*_DTYPES, BYTES))}")
    if len(shape) > MAX_DIMENSIONS:
        raise TensorsError(f"a shape of {len(shape)} sides: send at most {MAX_DIMENSIONS}")
    if any(not 0 <= side <= MAX_BYTES for side in shape):  # Of thousands of digits, none can be told.
        raise TensorsError(f"the shape has a side below 0, or one of more than {MAX_BYTES}: tell every side")
    size = _LENGTH.size if dtype == "bytes" else np.dtype(dtype).itemsize
    size *= prod(max(side, 1) for side in shape)  # A side of 0 makes room for others that no array can have.
    if size > MAX_BYTES:
        raise TensorsError(f"shape {list(shape)} of {datatype} takes {size} bytes, more than {MAX_BYTES}: send less")
    return dtype, prod(shape)


def strings(raw: Buffer, count: int) -> list[memoryview]:
    """The strings in the raw form of BYTES, without a copy.

    Raises:
        TensorsError: there are not so many, or something stands behind them, or they are more than MAX_STRINGS.
    """
    if count > MAX_STRINGS:
        raise TensorsError(f"more than {MAX_STRINGS} strings: send fewer")
    view = memoryview(raw)
    found: list[memoryview] = []
    start = 0
    for place in range(count):
        if start + _LENGTH.size > len(view):
            raise TensorsError(f"BYTES end before string {place + 1} of {count}: send them all")
        (length,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        if start + length > len(view):
            raise TensorsError(f"BYTES end within string {place + 1} of {count}: send it whole")
        found.append(view[start : start + length])
        start += length
    if start != len(view):
        raise TensorsError(f"BYTES hold more than {count} strings: tell their shape")
    return found


def _objects(values: Sequence[bytes], shape: Sequence[int]) -> npt.NDArray[Any]:
    found = np.empty(len(values), object)
    found[:] = values
    return found.reshape(shape)
