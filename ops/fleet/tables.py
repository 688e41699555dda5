"""The fleet as tables for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Group
from rich.text import Text

from ops.fleet.fleet import FleetState
from shared.runlog.latency_log import WITH_RESULT
from shared.terminal_table import Table

_MOST_ROWS = 60  # Of each table.
_MOST_PROBLEMS = 20
_MOST_MODELS = 3  # Of a worker.
_GOOD, _BAD = "green", "bold red"

_BROKER = {"version": "{}", "uptime": "up {}", "clients": "{} clients", "dropped_messages": "{} messages dropped"}
_RATES = (("messages_per_minute", "{:.0f} messages/s", 60), ("bytes_per_minute", "{:.2f} MB/s", 60e6))

Row = Mapping[str, Any]


def fleet_tables(state: FleetState, certificates: Mapping[str, float]) -> Group:
    """Returns the fleet as tables, after what needs a look. `certificates`: the days that each is still valid."""
    parts: list[Any] = [Text(line) for line in _broker_lines(state, certificates)]
    parts += [Text(line, _BAD) for line in _problem_lines(state)]
    return Group(*parts, _workers(state.workers), _vehicles(state))


def _broker_lines(state: FleetState, certificates: Mapping[str, float]) -> Iterator[str]:
    parts = [text.format(value) for name, text in _BROKER.items() if (value := state.broker.get(name))]
    for name, text, unit in _RATES:
        with suppress(KeyError, ValueError):  # The broker has no such topic, or it holds no number.
            parts.append(text.format(float(state.broker[name]) / unit))
    yield f"broker: {' · '.join(parts) or 'it tells nothing about itself'}"
    if certificates:
        yield "certificates expire: " + ", ".join(f"{name} in {days:.0f} days" for name, days in certificates.items())


def _problem_lines(state: FleetState) -> Iterator[str]:
    yield from state.problems
    lines = [
        f"{kind} {row['name']}: {problem}"
        for kind, rows in (("worker", state.workers), ("vehicle", state.vehicles))
        for row in rows
        for problem in row["problems"]
    ]
    yield from lines[:_MOST_PROBLEMS]
    if len(lines) > _MOST_PROBLEMS:
        yield f"{len(lines) - _MOST_PROBLEMS} more problems, see --json"


def _workers(rows: Sequence[Row]) -> Table:
    columns = ("frames/s", "refused", "queue ms", "inference ms", "waiting", "CPU %", "MB", "GPU %")
    table = _table("Workers", rows, columns, "model")
    for row in rows[:_MOST_ROWS]:
        table.add_row(
            *_state(row),
            _number(row["frames_per_s"], ".1f"),
            _missed(row["frames"]),
            _times(row["queue_ms"]),
            _times(row["inference_ms"]),
            _number(row["in_queue"], "d"),
            _number(row["cpu_percent"], ".0f"),
            _number(row["memory_bytes"], ".0f", 1e6),
            _number(row["gpu_percent"], ".0f"),
            Text(_models(row["models"]) + (f" ({row['engine']})" if row["engine"] else "")),
        )
    return table


def _models(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_MODELS]) + (
        f", {len(names) - _MOST_MODELS} more" if len(names) > _MOST_MODELS else ""
    )


def _vehicles(state: FleetState) -> Table:
    rows = state.vehicles
    columns = ("frames/s", "no result", "total ms", "in flight", "clock ± ms", "seen s ago")
    table = _table(
        "Vehicles", rows, columns, "model", f"{state.vehicles_offline} offline" if state.vehicles_offline else ""
    )
    for row in rows[:_MOST_ROWS]:
        table.add_row(
            *_state(row),
            _number(row["frames_per_s"], ".1f"),
            _missed(row["frames"]),
            _times(row["total_ms"]),
            _number(row["in_flight"], "d"),
            _number(row["clock_error_ms"], ".2f"),
            _number(row["seen_s_ago"], ".0f"),
            Text(row["model"] or "–"),
        )
    return table


def _table(title: str, rows: Sequence[Row], numbers: Sequence[str], last: str, more: str = "") -> Table:
    hidden = f"{len(rows) - _MOST_ROWS} more, see --json" if len(rows) > _MOST_ROWS else ""
    caption = " · ".join(filter(None, ("of the last minute; times: p50 / p95" if rows else "", more, hidden)))
    table = Table("name", "state", title=f"{title}: {len(rows)}", caption=caption)
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column(last)
    return table


def _state(row: Row) -> tuple[Text, Text]:
    style = _BAD if row["problems"] else ""
    return Text(row["name"], style), Text(row["state"], _GOOD if row["state"] == "online" else _BAD)


def _number(value: float | None, spec: str, unit: float = 1) -> str:
    return "–" if value is None else f"{value if unit == 1 else value / unit:{spec}}"


def _times(found: Mapping[str, float | None] | None) -> str:
    return "–" if found is None else " / ".join(_number(found[name], ".0f") for name in ("p50", "p95"))


def _missed(frames: Mapping[str, int] | None) -> str:
    """Returns the share of the frames without a result."""
    if not frames or not sum(frames.values()):
        return "–"
    missed = sum(count for name, count in frames.items() if name not in WITH_RESULT)
    return f"{100 * missed / sum(frames.values()):.0f} %"
