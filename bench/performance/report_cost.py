"""`skylane bench report`: what the report of a long run takes: time, memory, size of its page."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.harness.output import machine_line
from bench.load.playback import BenchError
from bench.load.synthetic_run import Plan, write_run
from shared.runtime.machine import machine
from shared.terminal_table import Table

TARGETS = {"seconds": 15.0, "peak_memory_mb": 1000.0, "page_mb": 15.0}  # For 100,000 rows.
_TARGET_ROWS = 100_000


@click.command()
@click.option("--rows", type=click.IntRange(10, 2_000_000), default=_TARGET_ROWS, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def report(rows: int, rounds: int, *, as_json: bool) -> None:
    """Measure what `skylane report` takes for a run of many frames, whose log is made up for it."""
    console = Console(stderr=True)
    with console.status(f"making up {rows} rows") as status:
        result = measure(rows, rounds, lambda number: status.update(f"report {number} of {rounds}"))
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def measure(rows: int, rounds: int, on_round: Any) -> dict[str, Any]:
    """Report a made-up run of so many rows, each time in a process of its own; `on_round` is told which.

    Raises:
        BenchError: a report failed.
    """
    with tempfile.TemporaryDirectory(prefix="skylane-bench-") as folder:
        run = write_run(Path(folder) / "run", Plan(frames=rows))
        rounds_of = []
        for number in range(1, rounds + 1):
            on_round(number)
            rounds_of.append(_reported(run))
    return {
        "rows": rows,
        "rounds": rounds_of,
        "worst": {name: max(each[name] for each in rounds_of) for name in TARGETS},
        "targets": TARGETS if rows == _TARGET_ROWS else None,
        "machine": machine(),
    }


def _reported(run: Path) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "skylane", "report", str(run)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        # wait4 alone tells the peak of this one child.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise BenchError(f"the report failed: {said.read().decode(errors='replace').strip()[-500:]}")
    return {
        "seconds": seconds,
        "peak_memory_mb": usage.ru_maxrss * 1024 / 1e6,
        "page_mb": (run / "report.html").stat().st_size / 1e6,
    }


def _print(result: dict[str, Any], console: Console) -> None:
    rounds, targets = result["rounds"], result["targets"]
    table = Table(title=f"The report of {result['rows']:,} rows, {len(rounds)} times")
    for heading in ("figure", "least", "most", "target"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, title in (("seconds", "time, s"), ("peak_memory_mb", "peak memory, MB"), ("page_mb", "page, MB")):
        values = [each[name] for each in rounds]
        target = f"≤ {targets[name]:g}" if targets else "–"
        table.add_row(title, f"{min(values):.1f}", f"{max(values):.1f}", target)
    console.print(table)
    if targets:
        is_met = all(result["worst"][name] <= limit for name, limit in targets.items())
        console.print(f"targets {'met' if is_met else 'NOT met'}")
    console.print(machine_line(result["machine"]), highlight=False)
