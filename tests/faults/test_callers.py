"""Caller faults: hostile HTTP and gRPC clients, while an honest gRPC caller and an honest vehicle send frames."""

import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from analysis.statistics.samples import spread
from ops.processes.child import Child
from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.network.endpoint import free_ports
from shared.runlog.latency_log import Outcome
from shared.runtime.open_files import raise_file_limit
from tests.support.faults.finding import Figure
from tests.support.faults.hostile import attacks
from tests.support.faults.hostile.attacks import ATTACKS, RATE_BYTES_PER_S
from tests.support.faults.rig import ROOT, Rig

_RATE_HZ = 10.0  # Frame rate of each honest sender.
_DEADLINE_MS = 1000.0
_PHASE_S = 8.0  # Duration of each attack, and of the phase without attack.
_SETTLING_S = 2.0  # Not in the p95: the attackers connect and occupy slots. Missed frames count from the start.
_FLAGS = ("--deadline-ms", f"{_DEADLINE_MS:g}", "--loop")
_MAX_SLOWDOWN = 5.0
_MAX_MISSED = 5.0  # Percent.


@pytest.mark.faults(
    21,
    f"nested JSON, tiny messages, repeated headers, large calls, slow reads, 1,000 idle connections: each from one "
    f"process at {RATE_BYTES_PER_S / 1e6:g} MB/s, and all at once",
    "the worker lives; an honest gRPC caller's p95 and an honest vehicle's frames in time stay within their limits",
)
def test_hostile_callers(rig: Rig) -> None:
    """Runs one hostile process of each kind in turn, then all at once, while two honest senders send frames."""
    broker = rig.broker()
    http, grpc = (f"127.0.0.1:{port}" for port in free_ports(2))
    worker = rig.worker(broker.url, think_ms=20, http=http, grpc=grpc)
    caller_flags = ("--transport", "grpc", "--worker-address", grpc)
    vehicle = rig.vehicle(broker.url, "vehicle", rate_hz=_RATE_HZ, flags=_FLAGS)
    caller = rig.vehicle(broker.url, "caller", rate_hz=_RATE_HZ, flags=(*_FLAGS, *caller_flags))
    rig.wait_for_frames([vehicle, caller], 10)
    phases: dict[str, tuple[int, int]] = {}  # Start and end of each attack.
    settled: dict[str, tuple[int, int]] = {}  # The same without the settling time.
    for name, kinds in {"alone": (), **{kind: (kind,) for kind in ATTACKS}, "all at once": tuple(ATTACKS)}.items():
        rig.say(name)
        with _attacked(kinds, http, grpc, rig.folder):
            attacked_ns = clock.now_ns()
            time.sleep(_SETTLING_S)
            began_ns = clock.now_ns()
            time.sleep(_PHASE_S)
            ended_ns = clock.now_ns()
            phases[name], settled[name] = (attacked_ns, ended_ns), (began_ns, ended_ns)
        if not worker.is_running:
            break
    is_alive = worker.is_running
    accounts = rig.end_vehicles()
    alone_ms = _p95_ms(caller, settled["alone"])
    slowdowns = {name: _p95_ms(caller, span) / alone_ms for name, span in settled.items() if name != "alone"}
    missed = {name: _missed_percent(vehicle, span) for name, span in phases.items()}
    missed_calls = [_missed_percent(caller, span) for span in phases.values()]
    rig.conclude(
        accounts,
        Figure("workers ended", int(not is_alive), most=0),
        Figure("honest caller's p95 alone", alone_ms, "ms"),
        Figure("its p95 at most", max(slowdowns.values(), default=None), "times that", most=_MAX_SLOWDOWN),
        Figure("honest caller's frames not answered in time", max(missed_calls), "%"),
        Figure("honest vehicle's frames not answered in time", max(missed.values()), "%", most=_MAX_MISSED),
        remarks=(
            f"p95 by attack: {', '.join(f'{name} {ratio:.2f}' for name, ratio in slowdowns.items())}",
            f"vehicle's frames missed, %: {', '.join(f'{name} {share:.1f}' for name, share in missed.items())}",
        ),
    )


_FILES = 256  # Open files that each node may have.
_IDLE = 300  # Idle connections to each server.


@pytest.mark.faults(
    31,
    f"{_IDLE} idle connections to each server (HTTP, gRPC, metrics, view) of nodes that may open {_FILES} files",
    "the nodes live, the vehicle's frames are answered in time, scrapes and calls beside the idle connections are served",
)
def test_idle_connections(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds more idle connections than files are allowed, while a vehicle sends frames over the broker."""
    broker = rig.broker()
    python = rig.folder / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {_FILES}\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    servers = {name: f"127.0.0.1:{port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)}
    worker = rig.worker(broker.url, think_ms=20, http=servers["http"], grpc=servers["grpc"])
    has_view = find_spec("foxglove") is not None
    flags = (*_FLAGS, "--metrics", servers["metrics"], *(("--view", "foxglove") if has_view else ()))
    vehicle = rig.vehicle(broker.url, "vehicle", rate_hz=_RATE_HZ, flags=flags)
    rig.wait_for_frames([vehicle], 10)
    if view := re.search(r"ws://([\w.]+:\d+)", vehicle.output):
        servers["view"] = view[1]
    raise_file_limit()
    unserved = 0
    with ExitStack() as stack:
        began_ns = clock.now_ns()
        for address in servers.values():
            for _ in range(_IDLE):
                with suppress(OSError):  # A server may refuse it.
                    host, _, port = address.rpartition(":")
                    stack.enter_context(socket.create_connection((host, int(port)), 1.0))
        for _ in range(round(_PHASE_S)):
            time.sleep(1.0)
            for name in ("http", "metrics"):
                with suppress(httpx.HTTPError):
                    unserved -= httpx.get(f"http://{servers[name]}/metrics", timeout=10.0).is_success
                unserved += 1
        ended_ns = clock.now_ns()
    ended = [worker.is_running, vehicle.is_running].count(False)
    rig.conclude(
        rig.end_vehicles(),
        Figure("nodes ended", ended, most=0),
        Figure("scrapes not served", unserved, most=0),
        Figure(
            "vehicle's frames not answered in time",
            _missed_percent(vehicle, (began_ns, ended_ns)),
            "%",
            most=_MAX_MISSED,
        ),
        remarks=() if has_view else ("without a view: foxglove is not installed",),
    )


@contextmanager
def _attacked(kinds: Sequence[str], http: str, grpc: str, folder: Path) -> Iterator[None]:
    """Runs one hostile process of each kind within the block."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                Child(
                    attacks.__name__,
                    {"kind": kind, "http": http, "grpc": grpc},
                    title=f"the hostile caller {kind}",
                    environment={"PYTHONPATH": str(ROOT)},
                    log=folder / f"attack-{kind}.log",
                )
            )
            for kind in kinds
        ]
        for process in processes:
            process.wait()
        yield


def _p95_ms(sender: VehicleProcess, span_ns: tuple[int, int]) -> float:
    """Returns the 95th percentile of a sender's latency; an unanswered frame counts with its deadline."""
    took_ms = [
        float(row["total_ms"]) if row["outcome"] == Outcome.ANSWERED else _DEADLINE_MS
        for row in sender.rows(due_ns=span_ns)
    ]
    return spread(took_ms)["p95"] if took_ms else _DEADLINE_MS


def _missed_percent(sender: VehicleProcess, span_ns: tuple[int, int]) -> float:
    """Returns the percentage of frames not answered in time, including frames that were never read."""
    due = int(_RATE_HZ * (span_ns[1] - span_ns[0]) / 1e9)
    return 100 * max(0.0, 1 - len(sender.rows(Outcome.ANSWERED, due_ns=span_ns)) / due)
