"""The fleet as tables for a terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Group
from rich.text import Text

from ops.fleet.fleet import LEFT, FleetState, missed_frames
from shared.runlog.percentiles import MISSING
from shared.terminal_table import Table, result_table

_MOST_ROWS = 60  # Of each table.
_MOST_PROBLEMS = 20
_MOST_LEFT = 5
_MOST_MODELS = 3  # Of a worker.
_GOOD, _BAD = "green", "bold red"

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str | Text]]


def fleet_tables(state: FleetState) -> Group:
    """Returns the fleet as tables, after what needs a look."""
    lines = [Text(_broker(state.broker))]
    if days := ", ".join(f"{name} in {left:.0f} days" for name, left in state.certificate_days.items() if left >= 0):
        lines.append(Text(f"certificates expire: {days}"))
    lines += [Text(line, _BAD) for line in _problem_lines(state)]
    offline = f"{state.vehicles_offline} offline" if state.vehicles_offline else ""
    workers = _table("Workers", state.workers, _WORKER_COLUMNS)
    return Group(*lines, workers, _table("Vehicles", state.vehicles, _VEHICLE_COLUMNS, offline))


def _broker(found: Mapping[str, str]) -> str:
    parts = []
    for name, (text, unit) in _BROKER_TEXTS.items():
        with suppress(KeyError, ValueError):  # The broker has no such topic, or it holds no number.
            parts.append(text.format(float(found[name]) / unit if unit else found[name]))
    return f"broker: {' · '.join(parts) or 'it tells nothing about itself'}"


_BROKER_TEXTS = {  # With the unit of numbers.
    "version": ("{}", None),
    "uptime": ("up {}", None),
    "clients": ("{} clients", None),
    "dropped_messages": ("{} messages dropped", None),
    "messages_per_minute": ("{:.0f} messages/s", 60),
    "bytes_per_minute": ("{:.2f} MB/s", 60e6),
}


def _problem_lines(state: FleetState) -> Iterator[str]:
    yield from state.problems
    lines = [
        f"{kind} {row['name']}: {problem}"
        for kind, rows in (("worker", state.workers), ("vehicle", state.vehicles))
        for row in rows
        if row["problems"] != LEFT
        for problem in row["problems"]
    ]
    yield from lines[:_MOST_PROBLEMS]
    if len(lines) > _MOST_PROBLEMS:
        yield f"{len(lines) - _MOST_PROBLEMS} more problems, see --json"
    if left := [row["name"] for row in state.workers if row["problems"] == LEFT]:
        more = ", …" if len(left) > _MOST_LEFT else ""
        yield f"offline workers: {len(left)}: {', '.join(left[:_MOST_LEFT])}{more}"


def _table(title: str, rows: Sequence[Row], columns: Columns, more: str = "") -> Table:
    hidden = f"{len(rows) - _MOST_ROWS} more, see --json" if len(rows) > _MOST_ROWS else ""
    caption = " · ".join(filter(None, ("of the last minute; times: p50 / p95" if rows else "", more, hidden)))
    formats = {heading: "<" if heading in ("name", "state", "model") else ">" for heading in columns}
    cells = [[cell(row) for cell in columns.values()] for row in rows[:_MOST_ROWS]]
    return result_table(f"{title}: {len(rows)}", formats, cells, caption)


def _number(name: str, spec: str, unit: float = 1) -> Callable[[Row], str]:
    return lambda row: MISSING if row[name] is None else f"{row[name] / unit:{spec}}"


def _times(name: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        found = row[name]
        return MISSING if found is None else " / ".join(_number(each, ".0f")(found) for each in ("p50", "p95"))

    return shown


def _missed(row: Row) -> str:
    """Returns the share of the frames without a result."""
    frames = row["frames"]
    if not frames or not sum(frames.values()):
        return MISSING
    return f"{100 * missed_frames(frames).total() / sum(frames.values()):.0f} %"


def _models(row: Row) -> Text:
    names, engine = row["models"], row["engine"]
    more = [f"{len(names) - _MOST_MODELS} more"] if len(names) > _MOST_MODELS else []
    return Text(", ".join([*names[:_MOST_MODELS], *more]) + (f" ({engine})" if engine else ""))


_COLUMNS: Columns = {
    "name": lambda row: Text(row["name"], _BAD if row["problems"] else ""),
    "state": lambda row: Text(row["state"], _GOOD if row["state"] == "online" else _BAD),
    "frames/s": _number("frames_per_s", ".1f"),
}
_WORKER_COLUMNS: Columns = {
    **_COLUMNS,
    "refused": _missed,
    "queue ms": _times("queue_ms"),
    "inference ms": _times("inference_ms"),
    "waiting": _number("in_queue", ".0f"),
    "CPU %": _number("cpu_percent", ".0f"),
    "MB": _number("memory_bytes", ".0f", 1e6),
    "GPU %": _number("gpu_percent", ".0f"),
    "model": _models,
}
_VEHICLE_COLUMNS: Columns = {
    **_COLUMNS,
    "no result": _missed,
    "total ms": _times("total_ms"),
    "in flight": _number("in_flight", ".0f"),
    "clock ± ms": _number("clock_error_ms", ".2f"),
    "seen s ago": _number("seen_s_ago", ".0f"),
    "model": lambda row: Text(row["model"] or MISSING),
}
