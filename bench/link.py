"""`skylane bench link`: emulates a link with known faults until Ctrl-C, or measures how accurate emulated links are."""

import json
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Any, TypeVar

import click
from rich.console import Console

from analysis.statistics.samples import spread
from bench.harness import OnStep, show
from ops.link.link import LOOPBACK, Link, LinkCounts
from shared.flags import ValidatedText, WholeRange, number, override
from shared.network.endpoint import Endpoint
from shared.network.link_spec import PROFILES, LinkSpec
from shared.quiet import progress_console
from shared.runlog.percentiles import NOTE, shown
from shared.runtime.machine import machine
from shared.terminal_table import Table, result_table

Command = TypeVar("Command", bound=Callable[..., Any])

_STATUS_INTERVAL_S = 1.0
_DEFAULT_PORT = 1884  # The broker's default port plus one.


def _spec_options(command: Command) -> Command:
    """Adds an option for every key of a link's specification."""
    for name, field in reversed(LinkSpec.model_fields.items()):
        command = click.option(
            f"--{name.replace('_', '-')}", name, type=number(LinkSpec, name), help=field.description
        )(command)
    return command


@click.command()
@click.option("--to", type=ValidatedText("HOST:PORT", Endpoint.parse), help="Address of the broker.")
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
@_spec_options
@click.option("--check", is_flag=True, help="Measure the accuracy of emulated links on this machine instead.")
@click.option(
    "--round-trips", type=WholeRange(10, 100_000), default=200, show_default=True, help="Round trips of --check."
)
@click.option("--json", "as_json", is_flag=True, help="Print only the counts, or the result of --check, as JSON.")
def link(
    to: str | None, listen: int, profile: str, *, check: bool, round_trips: int, as_json: bool, **faults: Any
) -> None:
    """Emulate a link with known faults between vehicle and broker until Ctrl-C; options override the profile."""
    if check:
        with progress_console().status("preparing") as status:
            result = check_links(round_trips, status.update)
        show(result, _tables(result), as_json=as_json)
        return
    if to is None:
        raise click.UsageError("--to is missing: give the address of the broker, such as --to 127.0.0.1:1883")
    spec = apply_options(PROFILES[profile], faults)
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


def apply_options(profile: LinkSpec, faults: Mapping[str, Any]) -> LinkSpec:
    """Applies options to a profile; an option for both directions overrides the profile's values for single ones."""
    for both, unit in (("delay", "ms"), ("bandwidth", "mbps")):
        if faults[f"{both}_{unit}"] is not None:
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


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    headings = ("up + down", "n", "min", "median", "p95", "p99", "proxy late: median", "late: p99")
    yield result_table(
        "Round trip beyond the delays of the link, ms",
        dict.fromkeys(headings, ""),
        [
            (
                f"{row['delay_up_ms']:g} + {row['delay_down_ms']:g}",
                row["round_trips"],
                *(shown(value, 3) for value in (*row["excess_ms"].values(), *row["late_ms"].values())),
            )
            for row in result["delays"]
        ],
        NOTE,
    )
    for row in result["bandwidths"]:
        yield f"{row['bandwidth_mbps']:g} Mbit/s requested, {row['came_mbps']:.2f} measured"


_PING_BYTES = 64
_WARM_UP_TRIPS = 10  # Round trips that are not counted.
DELAYS_MS = ((0.0, 0.0), (5.0, 5.0), (25.0, 5.0), (25.0, 25.0))  # Delays up and down.
BANDWIDTHS_MBPS = (5.0, 20.0, 100.0)
_READ_BYTES = 1 << 16


def check_links(round_trips: int, on_step: OnStep, *, bulk_s: float = 1.0) -> dict[str, Any]:
    """Measures a link between this process and an echo server on loopback; returns the JSON output.

    `excess_ms` is the time of a round trip of 64 bytes beyond the requested delays, including the echo and the sockets;
    `late_ms` is the proxy's part of it, the time between computed and real delivery. `bulk_s`: duration of a bulk transfer.
    """
    delays = []
    bandwidths = []
    with ExitStack() as stack:
        port = stack.enter_context(_echo())
        for up_ms, down_ms in DELAYS_MS:
            on_step(f"{round_trips} round trips of {up_ms:g} + {down_ms:g} ms")
            with Link(LinkSpec(delay_up_ms=up_ms, delay_down_ms=down_ms), LOOPBACK, port) as link:
                durations_ms = _round_trips_ms(link.port, round_trips)
                counts = link.counts()
            delays.append(
                {
                    "delay_up_ms": up_ms,
                    "delay_down_ms": down_ms,
                    "round_trips": len(durations_ms),
                    "excess_ms": spread([value - up_ms - down_ms for value in durations_ms]),
                    "late_ms": {"median": counts.late_p50_ms, "p99": counts.late_p99_ms},
                }
            )
        for mbps in BANDWIDTHS_MBPS:
            on_step(f"{bulk_s:g} s of {mbps:g} Mbit/s")
            with Link(LinkSpec(bandwidth_up_mbps=mbps), LOOPBACK, port) as link:
                measured_mbps = _bulk_mbps(link.port, round(mbps * 1e6 / 8 * bulk_s))
            bandwidths.append({"bandwidth_mbps": mbps, "came_mbps": measured_mbps})
    return {"delays": delays, "bandwidths": bandwidths, "machine": machine()}


def _round_trips_ms(port: int, count: int) -> list[float]:
    durations_ms = []
    ping = bytes(_PING_BYTES)
    with _connect(port) as near, near.makefile("rb") as received:
        for _ in range(_WARM_UP_TRIPS + count):
            begin_ns = time.perf_counter_ns()
            near.sendall(ping)
            received.read(len(ping))
            durations_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    return durations_ms[_WARM_UP_TRIPS:]


def _bulk_mbps(port: int, size: int) -> float:
    with _connect(port) as near, near.makefile("rb") as received:
        sender = threading.Thread(target=near.sendall, args=(bytes(size),), name="link-check-sender")
        begin_ns = time.perf_counter_ns()
        sender.start()
        received.read(size)
        took_s = (time.perf_counter_ns() - begin_ns) / 1e9
        sender.join()
    return size * 8 / 1e6 / took_s


def _connect(port: int) -> socket.socket:
    near = socket.create_connection((LOOPBACK, port))
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near


class _Echo(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(ConnectionError):  # The link was closed.
            while data := self.request.recv(_READ_BYTES):
                self.request.sendall(data)


@contextmanager
def _echo() -> Iterator[int]:
    """Runs an echo server that handles one connection after the other; yields its port."""
    with socketserver.TCPServer((LOOPBACK, 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, name="link-check-echo")
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
