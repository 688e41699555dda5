"""`skylane bench link`: a link of known faults, for as long as the command runs."""

import json
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import click
from rich.console import Console

from bench.harness.output import machine_line
from bench.link.check import check as check_link
from bench.link.link import PROFILES, Link, LinkCounts, LinkSpec
from shared.flags import ValidatedText, number, override
from shared.network.endpoint import Endpoint
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table

Command = TypeVar("Command", bound=Callable[..., Any])

_LOOK_S = 1.0
_DEFAULT_PORT = 1884  # The broker's own, and one.


def _spec_options(command: Command) -> Command:
    """Add a flag for every key of a link's specification."""
    for name, field in reversed(LinkSpec.model_fields.items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, type=number(LinkSpec, name), help=field.description
        )(command)
    return command


@click.command()
@click.option("--to", type=ValidatedText("HOST:PORT", Endpoint.parse), help="Of the broker.")
@click.option(
    "--listen", type=click.IntRange(0, 65535), default=_DEFAULT_PORT, show_default=True, help="0: a free port."
)
@click.option("--profile", type=click.Choice([*PROFILES]), default="none", show_default=True, help="What it is like.")
@_spec_options
@click.option("--check", is_flag=True, help="Measure instead how true links are on this machine.")
@click.option("--round-trips", type=click.IntRange(10, 100_000), default=200, show_default=True, help="Of --check.")
@click.option("--json", "as_json", is_flag=True, help="Print counts, or the check's figures, as JSON alone.")
def link(
    to: str | None, listen: int, profile: str, *, check: bool, round_trips: int, as_json: bool, **faults: Any
) -> None:
    """Stand between vehicle and broker as a link of known faults, until Ctrl-C; a flag wins over the profile."""
    if check:
        _check(round_trips, as_json=as_json)
        return
    if to is None:
        raise click.UsageError("--to is missing: say where the broker is, such as --to 127.0.0.1:1883")
    spec = _spec(PROFILES[profile], faults)
    where = Endpoint.parse(to)
    ended = threading.Event()
    for end_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end_signal, lambda *_: ended.set())
    console = Console(stderr=as_json)
    with Link(spec, where.host, where.port, listen) as running:
        console.print(f"{running.url} leads to {to}: {_told(spec)}", markup=False, highlight=False)
        with console.status("") as status:
            while not ended.wait(_LOOK_S):
                status.update(_line(running.counts()))
    if as_json:
        click.echo(json.dumps(asdict(running.counts()), indent=2))
    else:
        console.print(_line(running.counts()), markup=False, highlight=False)


def _spec(profile: LinkSpec, faults: Mapping[str, Any]) -> LinkSpec:
    """The profile with the faults in their place: what is given for both directions wins over the profile's for one."""
    for both, unit in (("delay", "ms"), ("bandwidth", "mbps")):
        if faults[f"{both}_{unit}"] is not None:
            profile = profile.model_copy(update={f"{both}_{way}_{unit}": None for way in ("up", "down")})
    return override(profile, faults)


def _told(spec: LinkSpec) -> str:
    """What is wrong with a link."""
    faults = spec.model_dump(exclude_defaults=True)
    return ", ".join(f"{name} {value:g}" for name, value in faults.items() if value is not None) or "no fault"


def _line(counts: LinkCounts) -> str:
    parts = [
        f"{counts.connections_open} of {counts.connections} connections open",
        f"{counts.bytes_up / 1e6:.2f} MB up, {counts.bytes_down / 1e6:.2f} MB down",
    ]
    told = ("refused", "resets", "segments_lost", "bits_flipped", "bytes_swallowed")
    parts += [f"{name.replace('_', ' ')} {number}" for name in told if (number := getattr(counts, name))]
    if counts.late_p50_ms is not None:
        parts.append(f"released {counts.late_p50_ms:.2f} ms late (p99 {shown(counts.late_p99_ms)})")
    return " · ".join(parts)


def _check(round_trips: int, *, as_json: bool) -> None:
    console = Console(stderr=True)
    with console.status("") as status:
        result = check_link(round_trips, status.update)
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    delays = Table(title="A round trip beyond its delays, ms", caption=NOTE)
    for heading in ("up + down", "n", "min", "median", "p95", "p99", "proxy late: median", "p99"):
        delays.add_column(heading, justify="right")
    for row in result["delays"]:
        delays.add_row(
            f"{row['delay_up_ms']:g} + {row['delay_down_ms']:g}",
            str(row["round_trips"]),
            *(shown(value, 3) for value in (*row["excess_ms"].values(), *row["late_ms"].values())),
        )
    console.print(delays)
    for row in result["bandwidths"]:
        console.print(f"{row['bandwidth_mbps']:g} Mbit/s asked, {row['came_mbps']:.2f} came", highlight=False)
    console.print(machine_line(result["machine"]), highlight=False)
