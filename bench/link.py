"""`python -m bench link`: measures how accurate emulated links are on this machine."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import click

from analysis.statistics.samples import spread
from bench.harness import OnStep, show
from ops.link.link import LOOPBACK, Link
from shared.flags import WholeRange
from shared.network.link_spec import LinkSpec
from shared.quiet import progress_console
from shared.runlog.percentiles import NOTE, shown
from shared.runtime.machine import machine
from shared.terminal_table import Table, result_table


@click.command()
@click.option("--round-trips", type=WholeRange(10, 100_000), default=200, show_default=True, help="Round trips.")
@click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
def link(round_trips: int, *, as_json: bool) -> None:
    """Measure the accuracy of emulated links on this machine."""
    with progress_console().status("preparing") as status:
        result = check_links(round_trips, status.update)
    show(result, _tables(result), as_json=as_json)


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
