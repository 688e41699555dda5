"""A CSV file as columns of text that know the lines they stand on; numbers are read from it, or said not to be any."""

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

from bench.logs.problems import ProblemCollector
from shared.runlog.latency_log import LogError

_MAX_LINE_BYTES = 1 << 16  # Ours are shorter than 3 kB; pyarrow wants a whole line within a block of 1 MB.
_DIGITS = "([0-9]{1,18}|[1-8][0-9]{18})"  # What fits into 64 bits.
_LEFT_OUT = "the row is left out"

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IntegerColumn:
    """A column of integers, shape (n,): `whole` is 0 where none is `known`; `wrong`: text that is no such number."""

    whole: Ints
    known: Bools
    wrong: Bools


@dataclass(frozen=True, slots=True)
class TextTable:
    """The rows of a file that have as many fields as its columns. `lines`: the line each stands on, from 1."""

    names: tuple[str, ...]
    lines: Ints
    text: Any  # A pyarrow.Table of strings.

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, keep: Bools) -> "TextTable":
        """The rows of a mask."""
        if keep.all():
            return self
        return TextTable(self.names, self.lines[keep], self.text.filter(pa.array(keep)))

    def cell(self, name: str, row: int) -> str:
        """One field, by its place among the rows."""
        return str(self.text[name][row].as_py())

    def series(self, name: str) -> pd.Series:
        """A column as text for pandas."""
        return self.text[name].to_pandas()

    def empty(self, name: str) -> Bools:
        """Where a column is empty."""
        return _mask(pc.equal(self.text[name], ""))

    def one_of(self, name: str, values: Sequence[str]) -> Bools:
        """Where a column holds one of these texts."""
        return _mask(pc.is_in(self.text[name], pa.array(values, pa.string())))

    def integers(self, name: str, *, signed: bool = False) -> IntegerColumn:
        """A column of whole numbers."""
        return self._numbers(name, f"^{'-?' if signed else ''}{_DIGITS}$", self.text[name], self.text[name])

    def millionths(self, name: str, *, signed: bool = False) -> IntegerColumn:
        """A column of numbers with at most six decimals, as whole millionths: milliseconds become nanoseconds."""
        sign = "-?" if signed else ""
        column = self.text[name]
        fewer = _mask(pc.match_substring_regex(column, rf"^{sign}[0-9]{{1,12}}(\.[0-9]{{1,5}})?$"))
        if fewer.any():  # Not as we write them, but as a spreadsheet does.
            texts = zip(column.to_pylist(), fewer, strict=True)
            column = pa.chunked_array([[_with_six_decimals(text) if pad else text for text, pad in texts]], pa.string())
        without_point = pc.replace_substring(column, ".", "", max_replacements=1)
        return self._numbers(name, rf"^{sign}[0-9]{{1,12}}\.[0-9]{{6}}$", column, without_point)

    def decimals(self, name: str) -> tuple[npt.NDArray[np.float64], Bools]:
        """A column of numbers with or without decimals, NaN where there is none; and where text is no such number."""
        matches = pc.match_substring_regex(self.text[name], r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$")
        values = pc.cast(pc.if_else(matches, self.text[name], "nan"), pa.float64())
        return values.to_numpy(), ~_mask(matches) & ~self.empty(name)

    def _numbers(self, name: str, pattern: str, column: Any, digits: Any) -> IntegerColumn:
        matches = pc.match_substring_regex(column, pattern)
        known = _mask(matches)
        values = pc.cast(pc.if_else(matches, digits, "0"), pa.int64())
        return IntegerColumn(values.to_numpy(), known, ~known & ~self.empty(name))


def read_table(path: Path, problems: ProblemCollector, header: Sequence[str] | None = None) -> TextTable:
    """Read a CSV file, line by line a row; what is no row is left out and told.

    `header`: the columns where the file itself does not name them.

    Raises:
        LogError: the file cannot be read, or its first line names no columns.
    """
    try:
        data = path.read_bytes().replace(b"\r\n", b"\n")
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: give the folder of a run") from error
    if not data.endswith(b"\n"):
        end = data.rfind(b"\n") + 1
        if data:
            line = data.count(b"\n") + 1
            problems.rows("lines cut short", np.array([line]), lambda _: f"the line is cut short: {_LEFT_OUT}")
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
        raise LogError(f"{path}, row 1, is not text that names columns: is it a CSV file?") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise LogError(f"{path}, row 1, names {f'{twice[0]!r} twice' if twice else 'no columns'}: is it a CSV file?")
    return names


def _parse(data: bytes, names: tuple[str, ...], first: int, problems: ProblemCollector) -> TextTable:
    torn = _torn(data.split(b"\n")[:-1])
    if torn:
        lines = data.split(b"\n")
        for place in torn:
            lines[place] = b""
        data = b"\n".join(lines)
    left_out = {place: f"{reason}: {_LEFT_OUT}" for place, reason in torn.items()}

    def skip(row: Any) -> str:
        fields = f"has {row.actual_columns} fields where {row.expected_columns} are named: {_LEFT_OUT}"
        left_out.setdefault(row.number - 1, fields)
        skipped.append(row.number - 1)
        return "skip"

    skipped: list[int] = []
    text = _read_csv(data, names, skip)
    at = np.delete(np.arange(len(text) + len(skipped)), skipped)
    bad = np.array(sorted(left_out), np.int64)
    problems.rows("lines that are no rows", bad + first, lambda place: left_out[int(bad[place])])
    return TextTable(names, at + first, text).where(~np.isin(at, bad))


def _read_csv(data: bytes, names: tuple[str, ...], skip: Any) -> Any:
    types = {name: pa.string() for name in names}
    if not data:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    return pyarrow.csv.read_csv(
        io.BytesIO(data),
        pyarrow.csv.ReadOptions(column_names=names, use_threads=False),  # Only so are the lines of bad rows known.
        pyarrow.csv.ParseOptions(invalid_row_handler=skip, ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    ).combine_chunks()


def _torn(lines: Sequence[bytes]) -> Mapping[int, str]:
    """Lines that no row of ours can be, by their place; they would confuse the reading of others."""
    torn = {}
    for place, line in enumerate(lines):
        if not line:
            torn[place] = "the line is empty"
        elif len(line) > _MAX_LINE_BYTES:
            torn[place] = f"the line has {len(line)} bytes, more than any row"
        elif b"\r" in line:
            torn[place] = "holds a line end in its midst"
        elif b'"' in line and line.count(b'"') % 2:
            torn[place] = "has a quotation mark that is not closed"
        elif not line.isascii() and not _is_utf8(line):
            torn[place] = "holds bytes that are not UTF-8 text"
    return torn


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_six_decimals(text: str) -> str:
    whole, _, part = text.partition(".")
    return f"{whole}.{part:0<6}"


def _mask(values: Any) -> Bools:
    mask: Bools = values.to_numpy()
    return mask
