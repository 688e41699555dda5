"""`skylane bench soak`: faults drawn by chance for as long as is wanted."""

import json
import secrets
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.harness.output import machine_line
from bench.resilience import soak as soak_bench
from shared.broker.mosquitto import mosquitto_version, require_mosquitto
from shared.flags import FiniteRange
from shared.runtime.machine import machine
from shared.terminal_table import Table

_SCALES = {"rss_bytes": 1e6, "fds": 1.0, "threads": 1.0}  # What a column's number is of.


@click.command()
@click.option("--minutes", type=FiniteRange(0.1), default=30.0, show_default=True)
@click.option("--hours", type=FiniteRange(0.1), help="Instead of the minutes.")
@click.option("--seed", type=click.IntRange(0), help="Of the faults. [drawn, and printed]")
@click.option("--vehicles", type=click.IntRange(2, 16), default=3, show_default=True)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True)
@click.option("--rate-hz", type=FiniteRange(0.5, 100), default=10.0, show_default=True, help="Of each vehicle.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/soak"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def soak(*, minutes: float, hours: float | None, seed: int | None, out: Path, as_json: bool, **counts: Any) -> None:
    """Break something every few seconds, for a long time: no frame unaccounted for, and nobody grows.

    Workers, broker and vehicles are killed, frozen and started again, links go dark, slow and up and down, strangers send
    junk. The exit code is 1 where a promise does not hold, or memory, files or threads grow.
    """
    console, errors = Console(), Console(stderr=True)
    on = machine_line(machine(), f"Mosquitto {mosquitto_version(require_mosquitto())}")
    seed = secrets.randbits(32) if seed is None else seed
    seconds = minutes * 60 if hours is None else hours * 3600
    errors.print(f"seed {seed}", highlight=False)
    plan = soak_bench.Plan(seconds=seconds, seed=seed, **counts)
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=seconds)
        result = soak_bench.soak(
            plan, out, lambda at_s, doing: progress.update(task, completed=at_s, description=doing)
        )
    if as_json:
        click.echo(json.dumps({**result.told(), "machine": machine()}, indent=2))
    else:
        _print(result, console, on)
    sys.exit(1 if result.failures else 0)


def _print(result: soak_bench.Soaked, console: Console, on: str) -> None:
    times = Counter(deed.fault for deed in result.deeds)
    console.print(", ".join(f"{count} × {fault}" for fault, count in times.most_common()), highlight=False)
    accounts = result.accounts
    console.print(accounts.equation, highlight=False)
    console.print(
        f"{accounts.verdict}; sent again {accounts.retried}, answers not taken {accounts.ignored.total()}",
        highlight=False,
    )
    table = Table(title="What grows in an hour, in processes that lived for half of the time or longer")
    table.add_column("role")
    for heading in ("processes", "long-lived", "most MB", "MB/h", "files/h", "threads/h"):
        table.add_column(heading, justify="right")
    for growth in result.growths:
        rises = [(growth.per_hour[measure], scale) for measure, scale in _SCALES.items()]
        table.add_row(
            growth.role,
            str(growth.processes),
            str(growth.long_lived),
            "" if growth.most_rss_bytes is None else f"{growth.most_rss_bytes / 1e6:.1f}",
            *("" if rise is None else f"{rise / scale:+.2f}" for rise, scale in rises),
        )
    table.add_section()
    limits = (f"{soak_bench.MOST_PER_HOUR[measure] / scale:+.2f}" for measure, scale in _SCALES.items())
    table.add_row("at most", "", "", "", *limits)
    console.print(table)
    if not all(growth.judged for growth in result.growths):
        console.print("This was too short for slopes to be judged: they are told alone.", highlight=False)
    console.print(f"seed {result.plan.seed}; {result.plan.seconds:.0f} s; {on}", highlight=False, soft_wrap=True)
    for failure in result.failures:
        console.print(failure, style="bold red", markup=False, highlight=False)
    if not result.failures:
        console.print("All promises held.", style="green")
