"""`skylane link`: emulates a link with known faults until Ctrl-C."""

import json
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict

import click
from rich.console import Console

from ops.link.link import Link, LinkCounts
from shared.flags import ValidatedText, WholeRange, override
from shared.network.endpoint import Endpoint
from shared.network.link_spec import PROFILES, LinkSpec
from shared.runlog.percentiles import shown

_STATUS_INTERVAL_S = 1.0
_DEFAULT_PORT = 1884  # The broker's default port plus one.


_KEYS = "\n".join(f"  {name:<20}{field.description}" for name, field in LinkSpec.model_fields.items())


def _by_key(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise click.BadParameter(f"{text[:80]!r}: write KEY=VALUE, such as delay_ms=50")
    return dict(text.split("=", 1) for text in given)


@click.command(epilog=f"\b\nKeys of --set:\n{_KEYS}")
@click.option("--to", type=ValidatedText("HOST:PORT", Endpoint.parse), required=True, help="Address of the broker.")
@click.option(
    "--listen",
    type=WholeRange(0, 65535),
    default=_DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 selects a free port.",
)
@click.option(
    "--profile", type=click.Choice([*PROFILES]), default="none", show_default=True, help="Predefined properties."
)
@click.option(
    "--set",
    "faults",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_by_key,
    help="Property of the link, which overrides the profile's (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the counts, as JSON.")
def link(to: str, listen: int, profile: str, faults: Mapping[str, str], *, as_json: bool) -> None:
    """Emulate a link with known faults between vehicle and broker until Ctrl-C."""
    spec = with_faults(PROFILES[profile], faults)
    target = Endpoint.parse(to)
    ended = threading.Event()
    for end_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end_signal, lambda *_: ended.set())
    console = Console(stderr=as_json)
    with Link(spec, target.host, target.port, listen) as running:
        console.print(f"{running.url} leads to {to}: {_faults_text(spec)}", markup=False, highlight=False)
        with console.status("") as status:
            while not ended.wait(_STATUS_INTERVAL_S):
                status.update(_counts_text(running.counts()))
    if as_json:
        click.echo(json.dumps(asdict(running.counts()), indent=2))
    else:
        console.print(_counts_text(running.counts()), markup=False, highlight=False)


def with_faults(profile: LinkSpec, faults: Mapping[str, str]) -> LinkSpec:
    """Returns a profile with some properties replaced; one for both directions replaces the profile's for single ones.

    Raises:
        click.UsageError: there is no such key, or its value is not valid.
    """
    for both, unit in (("delay", "ms"), ("bandwidth", "mbps")):
        if f"{both}_{unit}" in faults:
            profile = profile.model_copy(update={f"{both}_{direction}_{unit}": None for direction in ("up", "down")})
    return override(profile, faults)


def _faults_text(spec: LinkSpec) -> str:
    faults = spec.model_dump(exclude_defaults=True)
    return ", ".join(f"{name} {value:g}" for name, value in faults.items() if value is not None) or "no fault"


def _counts_text(counts: LinkCounts) -> str:
    parts = [
        f"{counts.connections_open} of {counts.connections} connections open",
        f"{counts.bytes_up / 1e6:.2f} MB up, {counts.bytes_down / 1e6:.2f} MB down",
    ]
    names = ("refused", "resets", "segments_lost", "bits_flipped", "bytes_swallowed")
    parts += [f"{name.replace('_', ' ')} {count}" for name in names if (count := getattr(counts, name))]
    if counts.late_p50_ms is not None:
        parts.append(f"released {counts.late_p50_ms:.2f} ms late (p99 {shown(counts.late_p99_ms)})")
    return " · ".join(parts)
