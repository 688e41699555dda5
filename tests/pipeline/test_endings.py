"""Runs in which a node or the broker is killed or asked to stop: every frame has its outcome."""

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from analysis.logs.audit import audit
from ops.broker.broker import Broker
from ops.processes.child import cli_flags
from ops.processes.vehicle_process import VehicleProcess
from shared.inference.model import Model
from shared.runlog.latency_log import read_rows
from shared.runlog.repair import repair
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import WAIT_S, Vehicle, check, connect, pictures, play, skylane, worker


def test_every_frame_has_a_row_after_a_broker_restart(mosquitto_broker: Broker, model: Model, tmp_path: Path) -> None:
    """The broker loses all messages; both nodes reconnect."""
    port = mosquitto_broker.listener.port
    before: list[int] = []
    with ExitStack() as stack, worker(mosquitto_broker.url, model):
        vehicle: Vehicle
        bus = connect(mosquitto_broker.url, on_connected=lambda: vehicle.reconnected() if before else None)
        vehicle = Vehicle(bus, pictures(tmp_path, 20), tmp_path / "car-broker", loop=True, answer_timeout_s=3.0)

        def tick() -> None:
            if vehicle.answered() >= 10 and not before:
                os.kill(mosquitto_broker.pid, signal.SIGKILL)
                mosquitto_broker.stop()
                before.append(vehicle.answered())
                stack.enter_context(Broker.start(port=port, kind="mosquitto"))
            if before and vehicle.answered() >= before[0] + 20:
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["answered"] >= 30
    assert set(outcomes) <= {"answered", "lost", "dropped"}


def test_the_log_of_a_killed_vehicle_can_be_repaired(
    mosquitto_url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`report --repair`, or the next run, closes the open frames once, also those known from the presenter's log only."""
    out = tmp_path / "car-killed"
    flags = cli_flags(broker=mosquitto_url, model="tiny", no_sinks=True, loop=True, rate=20, window=4, present="hold")
    held = threading.Event()
    with worker(mosquitto_url, model) as node:
        infer = model.infer

        def hold(images: Any) -> Any:
            if node.counts.get("answered", 0) >= 10:
                held.set()
                assert go_on.wait(WAIT_S)
            return infer(images)

        go_on = threading.Event()
        monkeypatch.setattr(model, "infer", hold)
        try:
            with VehicleProcess(pictures(tmp_path, 20), out, flags) as vehicle:
                assert held.wait(WAIT_S), vehicle.output
        finally:
            go_on.set()
    assert read_manifest(out)["state"] == "running"
    answered = len(list(read_rows(out)))
    shown = skylane("report", str(out), "--repair")
    assert "closed as aborted" in shown
    assert "\n0 open frames of" in "\n" + skylane("report", str(out), "--repair")
    rows = list(read_rows(out))
    check(rows)
    aborted = [row for row in rows if row["outcome"] == "aborted"]
    assert aborted
    assert len(rows) == answered + len(aborted)
    assert {row["reason"] for row in aborted} == {"edge_died"}
    assert any(row["t_sent_ns"] for row in aborted)
    assert audit(out) == ()
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["frames_read"]) == ("repaired", len(rows))
    assert manifest["outcomes"]["aborted"] == len(aborted)
    assert repair(out) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_vehicle_that_is_stopped_completes_its_log(
    *, mosquitto_url: str, model: Model, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most runs end by Ctrl-C or a closed SSH session; the counts in the manifest must be right."""
    out = tmp_path / f"car-{number.name}"
    signalled = threading.Event()

    def infer_and_ask(images: Any) -> Any:
        if node.counts.get("answered", 0) >= 5 and not signalled.is_set():
            signalled.set()
            os.kill(os.getpid(), number)
        return infer(images)

    infer = model.infer
    with worker(mosquitto_url, model) as node:
        monkeypatch.setattr(model, "infer", infer_and_ask)
        code, printed = play(pictures(tmp_path, 20), mosquitto_url, out, loop=True, closed_loop=True, sinks=())
    assert code == 0, printed
    rows = list(read_rows(out))
    check(rows)
    manifest = read_manifest(out)
    assert manifest["state"] == "complete"
    assert manifest["frames_read"] == len(rows) == sum(manifest["outcomes"].values())
    assert manifest["outcomes"]["answered"] >= 5
    assert set(Counter(row["outcome"] for row in rows)) <= {"answered", "dropped"}
