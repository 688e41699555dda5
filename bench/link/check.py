"""How true a link is on this machine: what it adds to the delay it was asked for, and the bandwidth that comes out."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.harness.samples import spread
from bench.link.link import LOOPBACK, Link, LinkSpec
from shared.runtime.machine import machine

_PING_BYTES = 64
_SETTLING = 10  # Round trips that are not counted.
DELAYS_MS = ((0.0, 0.0), (5.0, 5.0), (25.0, 5.0), (25.0, 25.0))  # Up and down.
BANDWIDTHS_MBPS = (5.0, 20.0, 100.0)
_READ_BYTES = 1 << 16


def check(round_trips: int, on_step: Callable[[str], None], *, bulk_s: float = 1.0) -> dict[str, Any]:
    """Measure a link between this process and an echo on loopback. Returns what `--json` prints.

    `excess_ms` is what a round trip of 64 bytes takes beyond the delays asked for, the echo and the sockets included;
    `late_ms` is the part of it that is the proxy's own: how long after its moment a piece is released. `bulk_s`: how long a
    bulk transfer should take.
    """
    delays = []
    bandwidths = []
    with ExitStack() as stack:
        port = stack.enter_context(_echo())
        for up_ms, down_ms in DELAYS_MS:
            on_step(f"{round_trips} round trips of {up_ms:g} + {down_ms:g} ms")
            with Link(LinkSpec(delay_up_ms=up_ms, delay_down_ms=down_ms), LOOPBACK, port) as link:
                took_ms = _round_trips_ms(link.port, round_trips)
                counts = link.counts()
            delays.append(
                {
                    "delay_up_ms": up_ms,
                    "delay_down_ms": down_ms,
                    "round_trips": len(took_ms),
                    "excess_ms": spread([value - up_ms - down_ms for value in took_ms]),
                    "late_ms": {"median": counts.late_p50_ms, "p99": counts.late_p99_ms},
                }
            )
        for mbps in BANDWIDTHS_MBPS:
            on_step(f"{bulk_s:g} s of {mbps:g} Mbit/s")
            with Link(LinkSpec(bandwidth_up_mbps=mbps), LOOPBACK, port) as link:
                came_mbps = _bulk_mbps(link.port, round(mbps * 1e6 / 8 * bulk_s))
            bandwidths.append({"bandwidth_mbps": mbps, "came_mbps": came_mbps})
    return {"delays": delays, "bandwidths": bandwidths, "machine": machine()}


def _round_trips_ms(port: int, count: int) -> list[float]:
    took_ms = []
    ping = bytes(_PING_BYTES)
    with _connected(port) as near:
        for _ in range(_SETTLING + count):
            began_ns = time.perf_counter_ns()
            near.sendall(ping)
            _receive(near, len(ping))
            took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return took_ms[_SETTLING:]


def _bulk_mbps(port: int, size: int) -> float:
    with _connected(port) as near:
        sender = threading.Thread(target=near.sendall, args=(bytes(size),), name="link-check-sender")
        began_ns = time.perf_counter_ns()
        sender.start()
        _receive(near, size)
        took_s = (time.perf_counter_ns() - began_ns) / 1e9
        sender.join()
    return size * 8 / 1e6 / took_s


def _connected(port: int) -> socket.socket:
    near = socket.create_connection((LOOPBACK, port))
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near


def _receive(end: socket.socket, size: int) -> None:
    while size > 0:
        data = end.recv(_READ_BYTES)
        assert data, "nobody but this check closes the link"
        size -= len(data)


@contextmanager
def _echo() -> Iterator[int]:
    """A server that says again what it is told, one connection after the other; its port."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener,), name="link-check-echo")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            end, _ = listener.accept()
        except OSError:
            return
        with end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while data := end.recv(_READ_BYTES):
                    end.sendall(data)
            except ConnectionError:  # The link was closed, and with it what was under way.
                continue
