"""The table of frames: one Parquet file for each bag, and one for the whole batch, both written row group by row group.

The same rows give the same bytes: the files contain no time, and the size of a row group depends on rows alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ops.batch.frames import SegmentedFrame
from shared.errors import SkylaneError

_BAG_ROWS = 1 << 10  # Rows in memory while a bag is processed.
_GROUP_ROWS = 1 << 16  # Rows of a row group in the table of the batch.
_FRAME_COLUMNS = (
    ("camera", pa.string()),
    ("frame", pa.int64()),
    ("stamp_ns", pa.int64()),
    ("height", pa.int32()),
    ("width", pa.int32()),
    ("mask", pa.string()),
)


class BagTableError(SkylaneError):
    """The table of a bag cannot be read."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """The table of one bag, and the values of its rows that it does not contain."""

    path: Path
    bag: str
    folder: str  # Folder of the bag's results, relative to that of the batch; "mask" is relative to it.


def share_columns(labels: Sequence[str]) -> list[str]:
    """Returns the names of the columns of label shares."""
    return [f"share_{label}" for label in labels]


class BagTable:
    """Writes the table of one bag: a row for each frame."""

    def __init__(self, path: Path, labels: Sequence[str]) -> None:
        self._shares = share_columns(labels)
        fields = (*_FRAME_COLUMNS, *((name, pa.float64()) for name in self._shares))
        self._schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, frame: SegmentedFrame, mask: str) -> None:
        """Adds a frame; `mask` is the path of its mask, relative to the folder of the bag's results."""
        total = sum(frame.counts)
        shares = (count / total for count in frame.counts)
        self._rows.append(
            {
                "camera": frame.camera,
                "frame": frame.index,
                "stamp_ns": frame.stamp_ns,
                "height": frame.geometry.source_height,
                "width": frame.geometry.source_width,
                "mask": mask,
                **dict(zip(self._shares, shares, strict=True)),
            }
        )
        if len(self._rows) >= _BAG_ROWS:
            self._flush()

    def close(self) -> None:
        """Completes the file."""
        if self._rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []


def merge(parts: Iterable[TablePart], path: Path, labels: Sequence[str], model: str, version: str) -> int:
    """Writes the table of a batch from those of its bags; returns the number of rows.

    The rows have the columns of `BagTable`, and `bag`, `model` and `version`; `mask` is relative to the batch's folder.

    Raises:
        BagTableError: the table of a bag cannot be read.
        OSError: the table cannot be written.
    """
    shares = share_columns(labels)
    fields = (("bag", pa.string()), *_FRAME_COLUMNS, *((name, pa.float64()) for name in shares))
    fields += (("model", pa.string()), ("version", pa.string()))
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
    rows = 0
    with _Groups(path, schema) as groups:
        for part in parts:
            for table in _tables(part.path):
                values = {name: table[name] for name in table.column_names}
                values["mask"] = pa.array([f"{part.folder}/{name}" for name in table["mask"].to_pylist()])
                constants = {"bag": part.bag, "model": model, "version": version}
                values |= {name: pa.array([value] * len(table)) for name, value in constants.items()}
                groups.add(pa.table([values[name] for name in schema.names], schema))
                rows += len(table)
    return rows


def _tables(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)
    except (pa.ArrowException, OSError) as error:
        raise BagTableError(f"{path} cannot be read ({error}): run the batch again with --verify") from error


@dataclass
class _Groups:
    """Writes tables of any length as row groups of _GROUP_ROWS."""

    path: Path
    schema: Any
    _writer: Any = None
    _waiting: list[Any] = field(default_factory=list)
    _rows: int = 0

    def __enter__(self) -> Self:
        self._writer = pq.ParquetWriter(self.path, self.schema, compression="zstd")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._rows:
            self._write(self._rows)
        self._writer.close()

    def add(self, table: Any) -> None:
        self._waiting.append(table)
        self._rows += len(table)
        while self._rows >= _GROUP_ROWS:
            self._write(_GROUP_ROWS)

    def _write(self, rows: int) -> None:
        waiting = pa.concat_tables(self._waiting).combine_chunks()
        self._writer.write_table(waiting.slice(0, rows), row_group_size=rows)
        rest = waiting.slice(rows)
        self._waiting, self._rows = [rest], len(rest)
