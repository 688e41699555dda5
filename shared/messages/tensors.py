"""Named arrays on the wire: a small MessagePack map, every number as it was, every size checked before memory is taken."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from shared.encoding.compression import Buffer, compress_lz4, compress_zstd, decompress_lz4, decompress_zstd
from shared.encoding.msgpack_reader import VERSION, Fields
from shared.errors import SkylaneError, UnknownNameError
from shared.messages.topics import checked

Array = npt.NDArray[Any]

MAX_TENSORS = 64
MAX_DIMENSIONS = 8
MAX_BYTES = 1 << 28  # Of all arrays together, unfolded: 20 scores for each pixel of 2048×1024 are 168 million bytes.

DTYPES = tuple(
    f"{kind}{bits}"
    for kind, sizes in {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}.items()
    for bits in sizes
)


class TensorsError(SkylaneError):
    """Arrays that cannot be packed, or data that is not the arrays it says."""


def _of_size(data: Buffer, size: int) -> Buffer:
    if len(data) != size:
        raise TensorsError(f"has {len(data)} bytes, its shape needs {size}: send that many")
    return data


class _Codec(NamedTuple):
    fold: Callable[[Buffer], Buffer]
    unfold: Callable[[Buffer, int], Buffer]


TENSOR_CODECS = {
    "raw": _Codec(lambda data: data, _of_size),
    "lz4": _Codec(compress_lz4, decompress_lz4),
    "zstd": _Codec(compress_zstd, decompress_zstd),
}


def encode(arrays: Mapping[str, Array], codec: str) -> bytes:
    """Pack named arrays: floats or whole numbers of any shape, C order, little-endian.

    The map holds `v` and `tensors`, a list of `[name, dtype, shape, data]`; `codec` folds each array's bytes.

    Raises:
        UnknownNameError: there is no such codec.
        TensorsError: an array is of another kind, or all are too many or too large.
    """
    fold = _codec(codec).fold
    if len(arrays) > MAX_TENSORS:
        raise TensorsError(f"{len(arrays)} arrays, at most {MAX_TENSORS} are packed: ask for fewer")
    _check_total(sum(array.nbytes for array in arrays.values()))
    packed: bytes = msgpack.packb(
        {"v": VERSION, "tensors": [_to_wire(name, array, fold) for name, array in arrays.items()]}
    )
    return packed


def decode(data: Buffer, codec: str) -> dict[str, Array]:
    """The arrays in what `encode` packed, in its order; those of `raw` are read-only.

    Raises:
        UnknownNameError: there is no such codec.
        SkylaneError: the data is not that; every size is compared with what came before memory is taken.
    """
    unfold = _codec(codec).unfold
    announced = [_announced(item) for item in Fields.of_message(bytes(data)).list("tensors")]
    names = [each.name for each in announced]
    if len(set(names)) < len(names) or len(names) > MAX_TENSORS:
        raise TensorsError(f"{len(names)} arrays come, at most {MAX_TENSORS} may, each under a name of its own")
    _check_total(sum(each.size for each in announced))
    return {each.name: each.unfolded(unfold) for each in announced}


def cast_checked(given: Array, dtype: str) -> Array:
    """Numbers as another type, none of them changed by more than rounding.

    Raises:
        TensorsError: a whole number is beyond what the type holds.
    """
    if given.size and np.dtype(dtype).kind in "iu":
        bounds = np.iinfo(dtype)
        if given.min() < bounds.min or given.max() > bounds.max:
            raise TensorsError(f"holds a number that is none of {dtype}: send {bounds.min} to {bounds.max}")
    return given.astype(dtype)


class _Announced(NamedTuple):
    """An array as it came; nothing is unfolded yet."""

    name: str
    dtype: np.dtype[Any]  # Little-endian.
    shape: tuple[int, ...]
    data: bytes

    @property
    def size(self) -> int:
        """Bytes, unfolded."""
        return prod(self.shape) * self.dtype.itemsize

    def unfolded(self, unfold: Callable[[Buffer, int], Buffer]) -> Array:
        """The array, in the byte order of this machine."""
        try:
            array = np.frombuffer(unfold(self.data, self.size), self.dtype).reshape(self.shape)
        except (SkylaneError, ValueError) as error:  # A side of 0 makes room for others that no array can have.
            raise TensorsError(f"array {self.name!r}: {error}") from error
        return array.astype(self.dtype.newbyteorder("="), copy=False)


def _announced(item: object) -> _Announced:
    match item:
        case [str(name), str(dtype), list(shape), bytes(data)] if dtype in DTYPES and len(shape) <= MAX_DIMENSIONS:
            if all(type(side) is int and 0 <= side <= MAX_BYTES for side in shape):
                return _Announced(checked("array", name), np.dtype(dtype).newbyteorder("<"), tuple(shape), data)
    raise TensorsError(f"an array is [name, dtype, shape, data] with up to {MAX_DIMENSIONS} sides: send it so")


def _to_wire(name: str, array: Array, fold: Callable[[Buffer], Buffer]) -> list[Any]:
    if array.dtype.name not in DTYPES or array.ndim > MAX_DIMENSIONS:
        raise TensorsError(
            f"array {name!r} is {array.dtype.name} with {array.ndim} sides: packed are {', '.join(DTYPES)} with up to "
            f"{MAX_DIMENSIONS}; have the model cast it"
        )
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = little.reshape(-1).view(np.uint8).data
    return [checked("array", name), array.dtype.name, list(array.shape), fold(data)]


def _check_total(total: int) -> None:
    if total > MAX_BYTES:
        raise TensorsError(f"{total} bytes of arrays, at most {MAX_BYTES} are packed: ask for fewer outputs")


def _codec(name: str) -> _Codec:
    if name not in TENSOR_CODECS:
        raise UnknownNameError("codec of arrays", name, TENSOR_CODECS)
    return TENSOR_CODECS[name]
