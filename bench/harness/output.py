"""Tables and JSON output of the benchmarks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console, RenderableType

from analysis.statistics.samples import PERCENTILES
from shared.runlog.percentiles import MISSING, NOTE, shown
from shared.terminal_table import Table, result_table

_LIBRARIES = ("python", "tensorflow", "numpy", "paho-mqtt")


def show(
    result: Mapping[str, Any], parts: Iterable[RenderableType], *, as_json: bool = False, path: Path | None = None
) -> None:
    """Prints the tables and lines of a result, the machine and the engine; or, if `as_json`, only the result as JSON.

    `path`: file that receives the JSON as well.
    """
    if path is not None:
        path.write_text(json.dumps(result, indent=2), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    console = Console()
    for part in parts:
        console.print(part, highlight=False, markup=False)
    console.print(machine_line(result["machine"], result.get("broker")), highlight=False)
    if "engine" in result:
        console.print(result["engine"], highlight=False)


def spread_table(title: str, rows: Mapping[str, Mapping[str, Any]], digits: int = 2) -> Table:
    """A table with one row of percentiles per measure, see `analysis.statistics.samples.spread`."""
    cells = [(name, *(shown(values[key], digits) for key in PERCENTILES)) for name, values in rows.items()]
    note = NOTE if any(MISSING in row for row in cells) else ""
    return result_table(title, {"measure": "<", **dict.fromkeys(PERCENTILES, "")}, cells, note)


def span(values: Sequence[float], digits: int = 3) -> str:
    """The smallest and the largest value, such as "0.912 to 1.034"."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def target_text(is_met: bool, margin: float = 0.0, spread: float = 0.0) -> str:  # noqa: FBT001 (its name says it)
    """The verdict on a target; none if the measurement spreads by more than `margin`, its distance from the target."""
    if spread > margin:
        return "no verdict: the spread is larger than the distance from the target"
    return "met" if is_met else "NOT met"


def rounds_text(is_met: bool, target: float, by_round: Sequence[float]) -> str:  # noqa: FBT001 (its name says it)
    """The verdict of several rounds on a target."""
    return target_text(is_met, abs(median(by_round) - target), max(by_round) - min(by_round))


def interval_text(is_met: bool, target: float, value: float, low: float | None, high: float | None) -> str:  # noqa: FBT001 (as above)
    """The verdict of an estimate with an interval, None without one, on a target."""
    return target_text(is_met, abs(value - target), 0.0 if low is None or high is None else (high - low) / 2)


def target_line(name: str, by_round: Sequence[float], target: float) -> str:
    """A line that compares the median of all rounds with the least value wanted."""
    value = median(by_round)
    return f"{name}: {value:.3f} (median of rounds; target {target}, {rounds_text(value >= target, target, by_round)})"


def machine_line(machine: Mapping[str, Any], broker: str | None = None) -> str:
    """Processor, broker and versions of a result; `machine`: as returned by `shared.runtime.machine`."""
    versions = ", ".join(f"{name} {machine[name]}" for name in _LIBRARIES)
    parts = (f"{machine['processor']}, {machine['cores']} cores", broker, versions)
    return "; ".join(part for part in parts if part)
