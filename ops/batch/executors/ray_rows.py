"""The rows that flow through the pipeline: one for each frame of a bag, and one for its end."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.batch.frames import BagEnd, PreparedFrame, SegmentedFrame

_SCHEMA = pa.schema(
    [
        ("bag", pa.int32()),
        ("position", pa.int32()),
        ("total", pa.int32()),
        ("kind", pa.string()),
        ("data", pa.large_binary()),
    ]
)


class RowKind(StrEnum):
    """The kinds of values in a row."""

    PREPARED = "prepared"
    SEGMENTED = "segmented"
    END = "end"
    REFUSAL = "refusal"  # The reason why the model cannot be loaded.


_TYPES: dict[str, Any] = {
    RowKind.PREPARED: PreparedFrame,
    RowKind.SEGMENTED: SegmentedFrame,
    RowKind.END: BagEnd,
    RowKind.REFUSAL: str,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A value of a bag."""

    bag: int  # Position of the bag in the batch.
    position: int  # Position of the value among the frames and the end of its bag, from 0.
    total: int | None  # Frames of the bag by its index, if that says.
    kind: str
    data: bytes  # The value as MessagePack.

    def value(self) -> Any:
        """Returns the value, of the type that belongs to the kind."""
        return msgspec.msgpack.decode(self.data, type=_TYPES[self.kind], dec_hook=_array)

    def table(self) -> Any:
        """Returns the row as an Arrow table."""
        columns = ([self.bag], [self.position], [self.total], [self.kind], [self.data])
        return pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), _SCHEMA)


def packed(value: Any) -> bytes:
    """Returns a value as MessagePack, for `Row.data`."""
    return msgspec.msgpack.encode(value, enc_hook=lambda image: (image.shape, image.data))


def rows(table: Any) -> Iterator[Row]:
    """Yields the rows of an Arrow table."""
    for record in table.to_pylist():
        yield Row(**record)


def _array(kind: Any, packed_image: Any) -> npt.NDArray[np.uint8]:
    del kind
    shape, pixels = packed_image
    return np.frombuffer(pixels, np.uint8).reshape(shape)
