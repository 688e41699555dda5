"""Conversion between NumPy arrays and the tensors of the Open Inference Protocol."""

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer
from shared.messages.tensors import (
    MAX_BYTES,
    MAX_DIMENSIONS,
    NUMBER_TYPES,
    TensorsError,
    cast_checked,
    little_endian,
    objects,
)

BYTES = "BYTES"
MAX_STRINGS = 4096  # Strings of one raw tensor: an empty one takes 4 bytes on the wire and 200 in memory.

_TYPES = {each.datatype: each for each in NUMBER_TYPES}
_FIELD_DTYPES = {  # The dtype of the elements of each field of `contents`.
    "bool_contents": "bool",
    "int_contents": "int32",
    "int64_contents": "int64",
    "uint_contents": "uint32",
    "uint64_contents": "uint64",
    "fp32_contents": "float32",
    "fp64_contents": "float64",
}
_DATATYPES = {each.dtype: each.datatype for each in NUMBER_TYPES} | dict.fromkeys(("bytes", "object"), BYTES)
_LENGTH = struct.Struct("<I")  # Precedes each string.


def dtype_name(datatype: str) -> str | None:
    """Returns NumPy's name of a datatype: "bytes" for strings, None for an unsupported datatype."""
    return "bytes" if datatype == BYTES else _TYPES[datatype].dtype if datatype in _TYPES else None


def datatype_name(dtype: str) -> str | None:
    """Returns the datatype of a NumPy dtype: BYTES for "bytes" or "object", None if the protocol has none."""
    return _DATATYPES.get(dtype)


def datatype_of(array: npt.NDArray[Any]) -> str:
    """Returns the datatype of an array: BYTES for an array of `bytes` objects."""
    return _DATATYPES[array.dtype.name]


def string_header(text: Buffer) -> bytes:
    """Returns the length prefix of a string in the raw form of BYTES."""
    return _LENGTH.pack(len(text))


def to_raw(array: npt.NDArray[Any]) -> bytes:
    """Encodes an array in raw form: numbers in C order, little-endian; each string with a four-byte length prefix."""
    if array.dtype == object:
        return b"".join(part for text in array.ravel() for part in (string_header(text), text))
    return bytes(little_endian(array))


def from_raw(raw: Buffer, datatype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Decodes the raw form to a read-only view of numbers or an array of `bytes` objects.

    All sizes are checked before memory is allocated.

    Raises:
        TensorsError: The datatype is unsupported, or the data does not have the size of the shape.
    """
    dtype, count = check_shape(datatype, shape)
    if dtype == "bytes":
        return objects([bytes(each) for each in strings(raw, count)], shape)
    size = count * np.dtype(dtype).itemsize
    if len(raw) != size:
        raise TensorsError(f"{datatype} of shape {list(shape)} takes {size} bytes, not {len(raw)}: send them all")
    numbers: npt.NDArray[Any] = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    numbers.flags.writeable = False
    return numbers


def from_contents(contents: Any, datatype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Decodes an `inference.InferTensorContents`, sent by clients that do not use the raw form.

    Raises:
        TensorsError: As for `from_raw`, or a number is out of the range of the datatype.
    """
    dtype, count = check_shape(datatype, shape)
    field = "bytes_contents" if dtype == "bytes" else _TYPES[datatype].contents_field
    if field is None:
        raise TensorsError(f"{datatype} has no field in contents: send it raw")
    values = getattr(contents, field)
    check_count(field, len(values), count, shape)
    if dtype == "bytes":
        return objects(list(values), shape)
    given = np.fromiter(values, _FIELD_DTYPES[field], count)  # Faster than np.asarray, which builds a list first.
    return cast_checked(given, dtype).reshape(shape)


def check_count(field: str, given: int, count: int, shape: Sequence[int]) -> None:
    """Checks that a field of contents has as many values as the shape.

    Raises:
        TensorsError: It has more or fewer.
    """
    if given != count:
        raise TensorsError(f"contents hold {given} in {field}, shape {list(shape)} takes {count}: send that many")


def check_shape(datatype: str, shape: Sequence[int]) -> tuple[str, int]:
    """Returns NumPy's name of a datatype and the number of values in a shape.

    Raises:
        TensorsError: The datatype is unsupported, or the shape is invalid or too large.
    """
    dtype = dtype_name(datatype)
    if dtype is None:
        raise TensorsError(f"datatype {datatype[:40]!r} is not supported: send {', '.join((*_TYPES, BYTES))}")
    if len(shape) > MAX_DIMENSIONS:
        raise TensorsError(f"a shape of {len(shape)} dimensions: send at most {MAX_DIMENSIONS}")
    if any(not 0 <= side <= MAX_BYTES for side in shape):  # Not quoted: a number may have thousands of digits.
        raise TensorsError(f"the shape has a dimension below 0 or of more than {MAX_BYTES}: give every dimension")
    size = _LENGTH.size if dtype == "bytes" else np.dtype(dtype).itemsize
    # A dimension of 0 counts as 1: otherwise the others could be larger than any array allows.
    size *= prod(max(side, 1) for side in shape)
    if size > MAX_BYTES:
        raise TensorsError(f"shape {list(shape)} of {datatype} takes {size} bytes, more than {MAX_BYTES}: send less")
    return dtype, prod(shape)


def strings(raw: Buffer, count: int) -> list[memoryview]:
    """Returns the strings in the raw form of BYTES as views.

    Raises:
        TensorsError: The data does not hold exactly `count` strings, or `count` exceeds MAX_STRINGS.
    """
    if count > MAX_STRINGS:
        raise TensorsError(f"more than {MAX_STRINGS} strings: send fewer")
    view = memoryview(raw)
    found: list[memoryview] = []
    start = 0
    for index in range(count):
        if start + _LENGTH.size > len(view):
            raise TensorsError(f"BYTES end before string {index + 1} of {count}: send them all")
        (length,) = _LENGTH.unpack_from(view, start)
        start += _LENGTH.size
        if start + length > len(view):
            raise TensorsError(f"BYTES end within string {index + 1} of {count}: send it whole")
        found.append(view[start : start + length])
        start += length
    if start != len(view):
        raise TensorsError(f"BYTES hold more than {count} strings: give their shape")
    return found
