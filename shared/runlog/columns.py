"""The columns of a run's CSV files: their names in order, what their cells hold, and the release that added them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from shared.sanitize import csv_text, printable
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage

_FIRST, _STABLE = "0.1", "1.0"
_MAX_TEXT = 200
_INTEGER_END = 1 << 63
_INTEGER = re.compile("-?[0-9]{1,19}").fullmatch
_MILLISECONDS = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,6}))?").fullmatch


class Kind(StrEnum):
    """The type of the cells of a column."""

    TEXT = "text"
    FOREIGN_TEXT = "text of others"  # Set by a worker or a plug-in: no formula for a spreadsheet.
    INTEGER = "integer"  # 0 or more.
    TIME = "time"  # Nanoseconds, with a sign.
    MILLISECONDS = "milliseconds"  # 0 or more, with six decimals: exact to the nanosecond.
    SIGNED_MILLISECONDS = "signed milliseconds"
    DECIMAL = "decimal"  # 0 or more, with six decimals.


TEXTS = (Kind.TEXT, Kind.FOREIGN_TEXT)
DURATIONS = (Kind.MILLISECONDS, Kind.SIGNED_MILLISECONDS)


@dataclass(frozen=True, slots=True)
class LogColumn:
    """One column. Files of releases before `since` lack it."""

    name: str
    kind: Kind
    since: str = _FIRST

    @property
    def attribute(self) -> str:
        """The field of a row that it shows: durations are nanoseconds there."""
        return f"{self.name.removesuffix('_ms')}_ns" if self.kind in DURATIONS else self.name

    def text(self, value: Any) -> str:
        """Returns a value of a row as a cell."""
        if self.kind in TEXTS:
            # Without line breaks: a row that a kill cut short is recognised by its missing line end.
            text = " ".join(printable(value).split())
            return (csv_text(text) if self.kind is Kind.FOREIGN_TEXT else text)[:_MAX_TEXT]
        if self.kind in DURATIONS:
            return milliseconds(value)
        return f"{value:.6f}" if self.kind is Kind.DECIMAL else str(value)

    def number(self, text: str) -> int | None:
        """Returns the number in a cell of integers or durations, which are nanoseconds then; None for other text."""
        if self.kind in DURATIONS:  # With at most six decimals: spreadsheets remove trailing zeros.
            match = _MILLISECONDS(text)
            return int(f"{match[1]}{match[2]}{(match[3] or '').ljust(6, '0')}") if match else None
        return int(text) if _INTEGER(text) and abs(int(text)) < _INTEGER_END else None


def milliseconds(value_ns: int) -> str:
    """Returns nanoseconds as milliseconds with six decimals, which keeps sums of columns exact."""
    sign, value_ns = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    return f"{sign}{value_ns // 1_000_000}.{value_ns % 1_000_000:06d}"


def cells_of(row_type: type, columns: Iterable[LogColumn]) -> Callable[[Any], dict[str, str]]:
    """Returns a function that makes the cells of a row from its fields; those that are None have none."""
    fields = row_type.__dataclass_fields__  # type: ignore[attr-defined]
    shown = [(each, attrgetter(each.attribute)) for each in columns if each.attribute in fields]

    def cells(row: Any) -> dict[str, str]:
        return {each.name: each.text(value) for each, get in shown if (value := get(row)) is not None}

    return cells


def _of(kind: Kind, *names: str, since: str = _FIRST) -> tuple[LogColumn, ...]:
    return tuple(LogColumn(name, kind, since) for name in names)


def _by_name(*groups: Sequence[LogColumn]) -> Mapping[str, LogColumn]:
    return {column.name: column for group in groups for column in group}


_STAGES = tuple(stage for stage in (*EDGE_STAGES, *CLOUD_STAGES) if stage not in OPTIONAL_STAGES)
_MEASURED = tuple(stage for stage in _STAGES if stage not in (Stage.DUE, Stage.RECEIVED))  # These two begin.
LATENCY = _by_name(
    _of(Kind.TEXT, "vehicle", "camera", "session"),
    _of(Kind.INTEGER, "sequence"),
    _of(Kind.TEXT, "outcome"),
    _of(Kind.FOREIGN_TEXT, "reason"),
    _of(Kind.INTEGER, "frame_index"),
    _of(Kind.TIME, "frame_stamp_ns", "source_ns"),
    _of(Kind.TEXT, "model"),
    _of(Kind.FOREIGN_TEXT, "model_version", "engine"),
    _of(Kind.TEXT, "worker"),
    _of(Kind.FOREIGN_TEXT, "worker_session"),
    _of(Kind.INTEGER, "attempts", "batch_size", "bytes_up", "bytes_down"),
    _of(Kind.TIME, *(f"t_{stage}_ns" for stage in _STAGES)),
    _of(Kind.MILLISECONDS, *(f"{stage}_ms" for stage in _MEASURED), "total_ms", "cloud_ms", "crossing_ms"),
    _of(Kind.SIGNED_MILLISECONDS, "uplink_ms", "downlink_ms", "clock_offset_ms"),  # Negative if a clock is behind.
    _of(Kind.MILLISECONDS, "clock_error_ms", "read_ms", "retry_wait_ms"),
    _of(Kind.INTEGER, "uplink_resolved", "downlink_resolved"),
    # New columns stand at the end, so that the other columns keep their places.
    _of(Kind.DECIMAL, "gate_distance", since=_STABLE),
    _of(Kind.INTEGER, "reused_sequence", since=_STABLE),
    _of(Kind.DECIMAL, "local_confidence", since=_STABLE),
    _of(Kind.TIME, *(f"t_{stage}_ns" for stage in OPTIONAL_STAGES), since=_STABLE),
    _of(Kind.MILLISECONDS, *(f"{stage}_ms" for stage in OPTIONAL_STAGES), since=_STABLE),
    _of(Kind.TEXT, "dispatch", since=_STABLE),
)
ADDED = tuple(name for name, column in LATENCY.items() if column.since != _FIRST)  # Missing in logs of 0.1.
PRESENTED = _by_name(
    _of(Kind.TEXT, "camera", "session"),
    _of(Kind.INTEGER, "tick", "frame_index"),
    _of(Kind.TIME, "frame_stamp_ns", "due_ns", "presented_ns"),
    _of(Kind.TEXT, "origin"),
    _of(Kind.FOREIGN_TEXT, "reason"),
    _of(Kind.INTEGER, "source_sequence"),
    _of(Kind.TIME, "age_ns"),
    _of(Kind.MILLISECONDS, "processing_ms"),
    _of(Kind.FOREIGN_TEXT, "flow"),
)
