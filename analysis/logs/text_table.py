"""Reads a CSV file as columns of text with their line numbers, and converts columns to numbers."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.logs.problems import ProblemCollector
from shared.files import read_file
from shared.runlog.columns import Kind, LogColumn
from shared.runlog.latency_log import LogError

_MAX_LINE_BYTES = 1 << 16  # Rows of a log are below 3 kB; pyarrow needs a whole line within a block of 1 MB.
_DIGITS = "([0-9]{1,18}|[1-8][0-9]{18})"  # Digits that fit into 64 bits.
_MS_DIGITS = "([0-9]{1,12}|[1-8][0-9]{12})"  # Whole milliseconds that fit into 64 bits as nanoseconds.
_SKIPPED = "the row is skipped"

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KnownIntegers:
    """Integers, some of which are not known; all arrays have shape (n,)."""

    data: Ints
    known: Bools


@dataclass(frozen=True, slots=True)
class IntegerColumn(KnownIntegers):
    """A column of integers, 0 where not known."""

    invalid: Bools  # The cell has text that is not such a number.


@dataclass(frozen=True, slots=True)
class TextTable:
    """The complete rows of a CSV file."""

    names: tuple[str, ...]
    lines: Ints  # Line number of each row, starting at 1.
    text: Any  # A pyarrow.Table of strings.

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, keep: Bools) -> "TextTable":
        """Returns the rows selected by a mask."""
        if keep.all():
            return self
        return TextTable(self.names, self.lines[keep], self.text.filter(pa.array(keep)))

    def with_columns(self, names: Sequence[str]) -> "TextTable":
        """Returns the table with an empty column for each name that it lacks."""
        added = tuple(name for name in names if name not in self.names)
        text = self.text
        for name in added:
            text = text.append_column(name, pa.array([""] * len(self), pa.string()))
        return TextTable((*self.names, *added), self.lines, text)

    def cell(self, name: str, row: int) -> str:
        """Returns one field by the index of its row."""
        return str(self.text[name][row].as_py())

    def series(self, name: str) -> pd.Series:
        """Returns a column as text for pandas."""
        return self.text[name].to_pandas()

    def empty(self, name: str) -> Bools:
        """Returns a mask of the empty cells of a column."""
        return _mask(pc.equal(self.text[name], ""))

    def one_of(self, name: str, values: Sequence[str]) -> Bools:
        """Returns a mask of the cells that contain one of `values`."""
        return _mask(pc.is_in(self.text[name], pa.array(values, pa.string())))

    def numbers(self, column: LogColumn) -> IntegerColumn:
        """Converts a column of numbers: durations become nanoseconds, decimals millionths."""
        if column.kind in (Kind.INTEGER, Kind.TIME):
            return self.integers(column.name, signed=column.kind is Kind.TIME)
        return self.millionths(column.name, signed=column.kind is Kind.SIGNED_MILLISECONDS)

    def integers(self, name: str, *, signed: bool = False) -> IntegerColumn:
        """Converts a column of integers."""
        return self._numbers(name, f"^{'-?' if signed else ''}{_DIGITS}$", self.text[name], self.text[name])

    def millionths(self, name: str, *, signed: bool = False) -> IntegerColumn:
        """Converts numbers with at most six decimals to millionths: milliseconds become exact nanoseconds."""
        sign = "-?" if signed else ""
        column = self.text[name]
        shortened = _mask(pc.match_substring_regex(column, rf"^{sign}{_MS_DIGITS}(\.[0-9]{{1,5}})?$"))
        if shortened.any():  # Spreadsheets remove trailing zeros.
            texts = zip(column.to_pylist(), shortened, strict=True)
            column = pa.chunked_array([[_with_six_decimals(text) if pad else text for text, pad in texts]], pa.string())
        without_point = pc.replace_substring(column, ".", "", max_replacements=1)
        return self._numbers(name, rf"^{sign}{_MS_DIGITS}\.[0-9]{{6}}$", column, without_point)

    def decimals(self, name: str) -> tuple[npt.NDArray[np.float64], Bools]:
        """Returns a column as floats (NaN where there is no number) and a mask of the cells with invalid text."""
        matches = pc.match_substring_regex(self.text[name], r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$")
        values = pc.cast(pc.if_else(matches, self.text[name], "nan"), pa.float64())
        return values.to_numpy(), ~_mask(matches) & ~self.empty(name)

    def _numbers(self, name: str, pattern: str, column: Any, digits: Any) -> IntegerColumn:
        matches = pc.match_substring_regex(column, pattern)
        known = _mask(matches)
        values = pc.cast(pc.if_else(matches, digits, "0"), pa.int64())
        return IntegerColumn(values.to_numpy(), known, ~known & ~self.empty(name))


def read_table(path: Path, problems: ProblemCollector, header: Sequence[str] | None = None) -> TextTable:
    """Reads a CSV file with one row per line; lines that are not rows are skipped and added to `problems`.

    `header` has the names of the columns if the file has no header line.

    Raises:
        LogError: The file cannot be read, or its first line does not name columns.
    """
    try:
        data = read_file(path).replace(b"\r\n", b"\n")
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: give the folder of a run") from error
    if not data.endswith(b"\n"):
        end = data.rfind(b"\n") + 1
        if data:
            line = data.count(b"\n") + 1
            problems.add_rows("truncated lines", np.array([line]), f"the line is truncated: {_SKIPPED}")
        data = data[:end]
    first = 1
    if header is None:
        head, _, data = data.partition(b"\n")
        header, first = _header(path, head), 2
    return _parse(data, tuple(header), first, problems)


def _header(path: Path, head: bytes) -> list[str]:
    try:
        names = next(csv.reader([head[:_MAX_LINE_BYTES].decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise LogError(f"{path}, row 1, is not a line of column names: is it a CSV file?") from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if not names or repeated:
        what = f"{repeated[0]!r} twice" if repeated else "no columns"
        raise LogError(f"{path}, row 1, names {what}: is it a CSV file?")
    return names


def _parse(data: bytes, names: tuple[str, ...], first: int, problems: ProblemCollector) -> TextTable:
    malformed = _malformed_lines(data.split(b"\n")[:-1])
    if malformed:
        lines = data.split(b"\n")
        for index in malformed:
            lines[index] = b""
        data = b"\n".join(lines)
    reasons = {index: f"{reason}: {_SKIPPED}" for index, reason in malformed.items()}

    def skip(row: Any) -> str:
        fields = f"has {row.actual_columns} fields, but the header has {row.expected_columns}: {_SKIPPED}"
        reasons.setdefault(row.number - 1, fields)
        skipped.append(row.number - 1)
        return "skip"

    skipped: list[int] = []
    text = _read_csv(data, names, skip)
    indices = np.delete(np.arange(len(text) + len(skipped)), skipped)
    bad = np.array(sorted(reasons), np.int64)
    problems.add_rows("lines that are not rows", bad + first, lambda index: reasons[int(bad[index])])
    return TextTable(names, indices + first, text).where(~np.isin(indices, bad))


def _read_csv(data: bytes, names: tuple[str, ...], skip: Any) -> Any:
    types = {name: pa.string() for name in names}
    if not data:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    return pyarrow.csv.read_csv(
        io.BytesIO(data),
        pyarrow.csv.ReadOptions(column_names=names, use_threads=False),  # Threads would lose the bad rows' numbers.
        pyarrow.csv.ParseOptions(invalid_row_handler=skip, ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    ).combine_chunks()


def _malformed_lines(lines: Sequence[bytes]) -> Mapping[int, str]:
    """Returns the reason for each malformed line, by its index; such lines would confuse the parser."""
    malformed = {}
    for index, line in enumerate(lines):
        if not line:
            malformed[index] = "the line is empty"
        elif len(line) > _MAX_LINE_BYTES:
            malformed[index] = f"the line has {len(line)} bytes, more than any row"
        elif b"\r" in line:
            malformed[index] = "contains a carriage return"
        elif b'"' in line and line.count(b'"') % 2:
            malformed[index] = "has an unclosed quotation mark"
        elif not line.isascii() and not _is_utf8(line):
            malformed[index] = "contains bytes that are not UTF-8"
    return malformed


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_six_decimals(text: str) -> str:
    integer, _, decimals = text.partition(".")
    return f"{integer}.{decimals:0<6}"


def _mask(values: Any) -> Bools:
    mask: Bools = values.to_numpy()
    return mask
