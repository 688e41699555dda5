"""Lossless encoding of named arrays as a MessagePack map, with all sizes checked before memory is allocated.

Also the types of numbers, by their names in NumPy, TensorFlow and the Open Inference Protocol.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from shared.compression import BYTE_CODECS, Buffer, ByteCodec
from shared.errors import SkylaneError, UnknownNameError
from shared.messages.msgpack_reader import VERSION, field_error, unpack_map
from shared.messages.topics import validate_name

Array = npt.NDArray[Any]

MAX_TENSORS = 64
MAX_DIMENSIONS = 8
MAX_BYTES = 1 << 28  # All arrays together, decompressed; float32 scores of 20 classes at 2048×1024 take 168 MB.


class NumberType(NamedTuple):
    """A type of numbers by its names in NumPy, TensorFlow and the Open Inference Protocol.

    `field` (TensorFlow) and `contents_field` (Open Inference Protocol) hold values that are not raw. Half floats of the Open
    Inference Protocol are always raw.
    """

    dtype: str
    number: int  # TensorFlow's DataType.
    field: str  # The name in a TensorProto.
    datatype: str  # The name in the Open Inference Protocol.
    contents_field: str | None  # The name in its InferTensorContents.


NUMBER_TYPES = (
    NumberType("bool", 10, "bool_val", "BOOL", "bool_contents"),
    NumberType("uint8", 4, "int_val", "UINT8", "uint_contents"),
    NumberType("uint16", 17, "int_val", "UINT16", "uint_contents"),
    NumberType("uint32", 22, "uint32_val", "UINT32", "uint_contents"),
    NumberType("uint64", 23, "uint64_val", "UINT64", "uint64_contents"),
    NumberType("int8", 6, "int_val", "INT8", "int_contents"),
    NumberType("int16", 5, "int_val", "INT16", "int_contents"),
    NumberType("int32", 3, "int_val", "INT32", "int_contents"),
    NumberType("int64", 9, "int64_val", "INT64", "int64_contents"),
    NumberType("float16", 19, "half_val", "FP16", None),
    NumberType("float32", 1, "float_val", "FP32", "fp32_contents"),
    NumberType("float64", 2, "double_val", "FP64", "fp64_contents"),
)
DTYPES = tuple(each.dtype for each in NUMBER_TYPES if each.dtype != "bool")  # The types of arrays in results.


class TensorsError(SkylaneError):
    """Arrays cannot be encoded, or encoded data is not valid."""


TENSOR_CODECS = BYTE_CODECS


def encode(arrays: Mapping[str, Array], codec: str) -> bytes:
    """Encodes named arrays of floats or integers.

    The map has the keys `v` and `tensors`, a list of `[name, dtype, shape, data]`. The data is in C order, little-endian
    and compressed by `codec`, array by array.

    Raises:
        UnknownNameError: The codec is unknown.
        TensorsError: An array has another dtype, or the arrays are too many or too large.
    """
    compress = _codec(codec).compress
    if len(arrays) > MAX_TENSORS:
        raise TensorsError(f"{len(arrays)} arrays are more than {MAX_TENSORS}: ask for fewer")
    _check_total(sum(array.nbytes for array in arrays.values()))
    packed: bytes = msgpack.packb(
        {"v": VERSION, "tensors": [_to_wire(name, array, compress) for name, array in arrays.items()]}
    )
    return packed


def decode(data: Buffer, codec: str) -> dict[str, Array]:
    """Decodes named arrays, in the order they were encoded; the arrays are read-only.

    Raises:
        UnknownNameError: The codec is unknown.
        SkylaneError: The data is not valid.
    """
    decompress = _codec(codec).decompress
    encoded = [_read_encoded(item) for item in _arrays(unpack_map(bytes(data)))]
    names = [each.name for each in encoded]
    if len(set(names)) < len(names) or len(names) > MAX_TENSORS:
        raise TensorsError(f"{len(names)} arrays: send at most {MAX_TENSORS}, each with a different name")
    _check_total(sum(each.size for each in encoded))
    return {each.name: each.decode(decompress) for each in encoded}


def cast_checked(array: Array, dtype: str) -> Array:
    """Casts an array to another dtype; integers must be in the range of an integer dtype.

    Raises:
        TensorsError: A number is out of range.
    """
    if array.size and np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise TensorsError(f"has a number outside the range of {dtype}: send {limits.min} to {limits.max}")
    return array.astype(dtype)


def little_endian(array: Array) -> memoryview:
    """Returns the bytes of a numeric array; not copied if it is little-endian and in C order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def objects(values: Sequence[bytes], shape: Sequence[int]) -> Array:
    """Returns an array of `bytes` objects."""
    found = np.empty(len(values), object)
    found[:] = values
    return found.reshape(shape)


class _EncodedArray(NamedTuple):
    """An array that is still compressed."""

    name: str
    dtype: np.dtype[Any]  # Little-endian.
    shape: tuple[int, ...]
    data: bytes

    @property
    def size(self) -> int:
        """Decompressed size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def decode(self, decompress: Callable[[Buffer, int], Buffer]) -> Array:
        """Returns the array in native byte order."""
        try:
            array = np.frombuffer(decompress(self.data, self.size), self.dtype).reshape(self.shape)
        except (SkylaneError, ValueError) as error:  # ValueError: one dimension is 0 and the others are too large.
            raise TensorsError(f"array {self.name!r}: {error}") from error
        return array.astype(self.dtype.newbyteorder("="), copy=False)


def _arrays(fields: dict[Any, Any]) -> list[Any]:
    arrays = fields.get("tensors")
    if not isinstance(arrays, list):
        raise field_error(fields, "tensors", "missing, or no list: send the arrays")
    return arrays


def _read_encoded(item: object) -> _EncodedArray:
    match item:
        case [str(name), str(dtype), list(shape), bytes(data)] if dtype in DTYPES and len(shape) <= MAX_DIMENSIONS:
            if all(type(side) is int and 0 <= side <= MAX_BYTES for side in shape):
                return _EncodedArray(
                    validate_name("array", name), np.dtype(dtype).newbyteorder("<"), tuple(shape), data
                )
    raise TensorsError(
        f"an array is [name, dtype, shape, data] with up to {MAX_DIMENSIONS} dimensions: send it like this"
    )


def _to_wire(name: str, array: Array, compress: Callable[[Buffer], Buffer]) -> list[Any]:
    if array.dtype.name not in DTYPES or array.ndim > MAX_DIMENSIONS:
        raise TensorsError(
            f"array {name!r} is {array.dtype.name} with {array.ndim} dimensions, supported are {', '.join(DTYPES)} with up "
            f"to {MAX_DIMENSIONS}: have the model cast it"
        )
    return [validate_name("array", name), array.dtype.name, list(array.shape), compress(little_endian(array))]


def _check_total(total: int) -> None:
    if total > MAX_BYTES:
        raise TensorsError(f"{total} bytes of arrays are more than {MAX_BYTES}: ask for fewer outputs")


def _codec(name: str) -> ByteCodec:
    if name not in TENSOR_CODECS:
        raise UnknownNameError("array codec", name, TENSOR_CODECS)
    return TENSOR_CODECS[name]
