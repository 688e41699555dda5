"""`skylane bench faults`: causes real faults and checks that every frame is accounted for."""

import json
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.faults.catalogue import chosen
from bench.faults.rig.rig import OVERLOAD_S, Rig
from bench.faults.rig.working_folder import place
from bench.faults.scenario import Finding, Scenario, UnavailableError
from bench.harness.output import machine_line
from ops.broker.mosquitto import mosquitto_version, require_mosquitto
from shared.errors import SkylaneError
from shared.flags import FiniteRange, WholeRange
from shared.runtime.machine import machine
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario and its result."""

    scenario: Scenario
    seconds: float
    finding: Finding | None = None
    unavailable: str = ""
    error: str = ""

    @property
    def failures(self) -> list[str]:
        """Promises that did not hold; a failure of the bench itself counts as one."""
        return [self.error] if self.error else self.finding.failures if self.finding else []

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return "not available" if self.unavailable else "FAILS" if self.failures else "holds"

    @property
    def figures(self) -> str:
        """The figures as text, or the reason why they are missing."""
        if self.finding is None:
            return self.unavailable or self.error
        return ", ".join(str(figure) for figure in self.finding.figures)

    @property
    def ledger(self) -> str:
        """The accounting equation and its verdict, if vehicles took part."""
        if self.finding is None or not self.finding.accounts.read:
            return ""
        return f"{self.finding.accounts.equation}; {self.finding.accounts.verdict}"

    def record(self) -> dict[str, Any]:
        """Returns the result as `--json` prints it."""
        finding = self.finding
        return {
            "number": self.scenario.number,
            "name": self.scenario.name,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "unavailable": self.unavailable,
            "failures": self.failures,
            "figures": [{**asdict(figure), "holds": figure.holds} for figure in finding.figures] if finding else [],
            "remarks": finding.remarks if finding else (),
            "ledger": finding.accounts.equation if finding else "",
            "unaccounted": finding.accounts.unaccounted if finding else 0,
            "accepted_twice": finding.accounts.accepted_twice if finding else 0,
            "reasons": dict(finding.accounts.reasons) if finding else {},
            "ignored_answers": dict(finding.accounts.ignored) if finding else {},
            "masks_checked": finding.accounts.masks_checked if finding else 0,
            "masks_wrong": finding.accounts.masks_wrong if finding else 0,
        }


def play(scenario: Scenario, folder: Path, seed: int, console: Console, *, overload_s: float = OVERLOAD_S) -> Played:
    """Runs one scenario; errors become part of its result."""
    shutil.rmtree(folder, ignore_errors=True)
    began_s = time.monotonic()
    title = f"{scenario.number} {scenario.name}: {scenario.fault}"
    try:
        with (
            console.status(title) as status,
            Rig(folder, seed, lambda step: status.update(f"{title}: {step}"), overload_s=overload_s) as rig,
        ):
            finding = scenario.run(rig)
    except UnavailableError as error:
        return Played(scenario, time.monotonic() - began_s, unavailable=str(error))
    except SkylaneError as error:
        return Played(scenario, time.monotonic() - began_s, error=str(error))
    except Exception as error:  # noqa: BLE001  A bug in one scenario must not discard the results of the others.
        console.print_exception()
        return Played(scenario, time.monotonic() - began_s, error=f"the bench failed: {type(error).__name__}: {error}")
    return Played(scenario, time.monotonic() - began_s, finding)


@click.command()
@click.argument("scenarios", nargs=-1)
@click.option("--seed", type=WholeRange(0), help="Seed of random choices. [random, and printed]")
@click.option(
    "--overload-s",
    type=FiniteRange(30),
    default=OVERLOAD_S,
    show_default=True,
    help="Duration of the overload scenario in seconds.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/faults"), show_default=True)
@click.option("--list", "only_list", is_flag=True, help="List the scenarios without running them.")
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table to this Markdown file."
)
@click.option("--json", "as_json", is_flag=True, help="Print only JSON.")
def faults(
    scenarios: Sequence[str],
    *,
    seed: int | None,
    overload_s: float,
    out: Path,
    only_list: bool,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run fault SCENARIOS (numbers or names; default all) and check that every frame is accounted for.

    Real processes are killed, frozen and disconnected. The exit code is 1 if a promise does not hold.
    """
    console, errors = Console(), Console(stderr=True)
    wanted = chosen(scenarios)
    if only_list:
        console.print(_list(wanted))
        return
    on = machine_line(machine(), f"Mosquitto {mosquitto_version(require_mosquitto())}")
    seed = secrets.randbits(32) if seed is None else seed
    played: list[Played] = []
    with place(out):
        _write_markdown(markdown, played, seed, on)  # Fails early if the file cannot be written.
        for scenario in wanted:
            folder = out / f"{scenario.number:02d}-{scenario.name}"
            played.append(play(scenario, folder, seed, errors, overload_s=overload_s))
            _write_markdown(markdown, played, seed, on)
            if not as_json:
                _print_line(played[-1], console)
    if as_json:
        result = {"seed": seed, "machine": machine(), "scenarios": [each.record() for each in played]}
        click.echo(json.dumps(result, indent=2))
    else:
        seconds = sum(each.seconds for each in played)
        console.print(_summary(played))
        console.print(f"seed {seed}; {seconds:.0f} s; {on}", highlight=False, soft_wrap=True)
    sys.exit(1 if any(each.failures for each in played) else 0)


def _list(scenarios: Sequence[Scenario]) -> Table:
    table = Table("", "scenario", "what is done", "what must hold", show_lines=True)
    for scenario in scenarios:
        table.add_row(str(scenario.number), scenario.name, scenario.fault, scenario.promise)
    return table


def _summary(played: Sequence[Played]) -> Table:
    table = Table("", "scenario", "verdict", "failures")
    table.add_column("seconds", justify="right")
    for each in played:
        number = str(each.scenario.number)
        table.add_row(number, each.scenario.name, each.verdict, str(len(each.failures)), f"{each.seconds:.0f}")
    return table


def _print_line(played: Played, console: Console) -> None:
    colour = {"holds": "green", "FAILS": "bold red"}.get(played.verdict, "yellow")
    head = f"{played.scenario.number:>2} {played.scenario.name}"
    console.print(f"{head:<28} [{colour}]{played.verdict}[/] {played.seconds:5.0f} s", highlight=False)
    remarks = played.finding.remarks if played.finding else ()
    for line in (played.figures, played.ledger, *remarks, *(played.failures if played.finding else ())):
        if line:
            console.print(f"     {line}", markup=False, highlight=False, soft_wrap=True)


def _write_markdown(path: Path | None, played: Sequence[Played], seed: int, on: str) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_markdown(played, seed, on), encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from error


def _markdown(played: Sequence[Played], seed: int, on: str) -> str:
    rows = [
        f"| {each.scenario.number} | {each.scenario.fault} | {each.scenario.promise} | {_cell(each.figures)} "
        f"| {each.ledger} | {each.verdict} |"
        for each in played
    ]
    head = ["| | what is done | what must hold | figures | the ledger | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows, "", f"Seed {seed}; {on}.", ""])


def _cell(text: str) -> str:
    """Escapes text for a table cell: error messages can contain line breaks and pipes."""
    return " ".join(text.split()).replace("|", "\\|")
