"""Log lines of a vehicle process, as a log collector reads them."""

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edge.config import EdgeConfig
from edge.run import NOTHING_ANSWERED, run
from edge.workers.worker_directory import NoWorkerError
from ops.broker.broker import Broker
from rosbag_tools.drive.recording import DrivePlan, record
from shared.inference.model import Model
from shared.runlog.run_manifest import read_manifest
from tests.edge.conftest import log_lines
from tests.pipeline.rig import WAIT_S, null_model, pictures, play, worker
from tests.support.command import Command
from tests.support.waiting import until

__all__ = ["log_lines"]

Line = Mapping[str, Any]


class Vehicle(Command):
    """A vehicle process, each of whose log lines is a JSON object."""

    def __init__(self, *arguments: object, cwd: Path | None = None) -> None:
        super().__init__("edge", "play", *arguments, "--log-format", "json", cwd=cwd)

    @property
    def lines(self) -> list[Line]:
        """The log lines so far."""
        return [json.loads(text) for text in self.log_lines]

    def wait_for_line(self, message: str, after: int = 0, **fields: object) -> int:
        """Waits for a line with this message and these fields; returns its number plus one, to wait for a later one."""
        numbers: list[int] = []

        def found() -> bool:
            lines = enumerate(self.lines[after:], after + 1)
            numbers[:] = [
                number for number, line in lines if line["message"] == message and line.items() >= fields.items()
            ]
            return bool(numbers)

        assert self.wait_until(found, WAIT_S), (message, fields, self.lines)
        return numbers[0]


def test_broker_outages_and_leaving_workers_are_logged(mosquitto_broker: Broker, model: Model, tmp_path: Path) -> None:
    """The broker is killed and restarted, then the worker leaves; standard output contains only results."""
    port = mosquitto_broker.listener.port
    flags = ("--broker", mosquitto_broker.url, "--model", "tiny", "--vehicle", "car-1", "--no-sinks", "--loop")
    with (
        ExitStack() as stack,
        Vehicle(pictures(tmp_path, 5), *flags, "--closed-loop", "--out", tmp_path / "run") as vehicle,
    ):
        serving = stack.enter_context(ExitStack())
        node = serving.enter_context(worker(mosquitto_broker.url, model))
        joined = vehicle.wait_for_line("worker joined")
        vehicle.wait_for_line("run started", model="tiny 1")
        until(lambda: node.counts.get("answered", 0) >= 3)
        os.kill(mosquitto_broker.pid, signal.SIGKILL)
        mosquitto_broker.stop()
        vehicle.wait_for_line("connection lost", after=joined)
        away = vehicle.wait_for_line("no connection to the broker", after=joined)
        stack.enter_context(Broker.start(port=port, kind="mosquitto"))
        vehicle.wait_for_line("connection regained", after=away)
        vehicle.wait_for_line("worker joined", after=away)
        before = node.counts["answered"]
        until(lambda: node.counts["answered"] >= before + 3)
        serving.close()
        vehicle.wait_for_line("worker left", after=away)
        code, printed = vehicle.end(signal.SIGINT)
    assert code == 0, vehicle.lines
    assert all(
        {"time", "level", "node", "vehicle", "message"} <= line.keys()
        and (line["node"], line["vehicle"]) == ("edge", "car-1")
        for line in vehicle.lines
    )
    assert "outcome" in printed
    assert printed.rstrip().endswith(f"The run is in {tmp_path / 'run'}")
    assert "no connection" not in printed
    assert vehicle.lines[-1]["message"] == "run ended"


def test_a_frame_without_an_answer_is_logged_with_its_id_and_reason(mosquitto_url: str, tmp_path: Path) -> None:
    """No frame can meet the deadline: similar lines are rate-limited, and the exit code shows the failure."""
    out = tmp_path / "run"
    flags = ("--broker", mosquitto_url, "--model", "tiny", "--vehicle", "car-1", "--no-sinks")
    with (
        worker(mosquitto_url, null_model()),
        Vehicle(pictures(tmp_path, 20), *flags, "--deadline-ms", "0.001", "--closed-loop", "--out", out) as vehicle,
    ):
        code, _ = vehicle.wait()
    assert code == NOTHING_ANSWERED
    dropped = [line for line in vehicle.lines if line["message"] == "frame dropped"]
    assert len(dropped) == 1
    assert dropped[0].items() >= {"level": "warning", "reason": "deadline", "camera": "pictures-20"}.items()
    assert dropped[0]["frame_id"].startswith("car-1/pictures-20/")
    assert vehicle.lines[-1].items() >= {"message": "run failed", "level": "error"}.items()
    assert "none of the 20 frames got a result in time" in vehicle.lines[-1]["reason"]


def test_a_network_of_synthetic_drives_warns_once_of_another_source(
    mosquitto_url: str, tmp_path: Path, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Its masks of real roads would mean nothing; the warning names the command that gets another network."""
    network, drive = null_model(), tmp_path / "drive"
    network.card = replace(network.card, trained_on=" synthetic drives of skylane")
    record(drive, DrivePlan(frames=3, width=96, height=64))
    with worker(mosquitto_url, network):
        for source, out in ((drive, "car-drive"), (pictures(tmp_path, 3), "car-real")):
            code, printed = play(source, mosquitto_url, tmp_path / out, closed_loop=True, sinks=())
            assert code == 0, printed
    (line,) = (each for each in log_lines() if each["event"] == "network trained on synthetic drives only")
    assert "skylane model fetch" in line["hint"]
    assert (line["model"], "pictures-3" in line["source"]) == ("tiny", True)
    for text in ("synthetic GTA5 frames, then real ones of Cityscapes", "synthetic drives of Skylane and others", ""):
        assert not replace(network.card, trained_on=text).is_trained_on_synthetic_drives


def test_a_start_without_a_worker_leaves_no_folder(
    mosquitto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no run, so there is no folder and no output."""
    source, at, printed = pictures(tmp_path, 1), tmp_path / "at", StringIO()
    at.mkdir()
    monkeypatch.chdir(at)
    config = EdgeConfig(broker=mosquitto_url, model="absent", connect_timeout_s=0.2)
    with pytest.raises(NoWorkerError):
        run(str(source), config, Console(file=printed, width=160))
    assert (list(at.iterdir()), printed.getvalue()) == ([], "")


def test_a_start_without_a_broker_is_logged_once(tmp_path: Path) -> None:
    """Connection attempts follow each other several times per second; their lines are rate-limited."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        unused_port = probe.getsockname()[1]
    flags = ("--broker", f"mqtt://127.0.0.1:{unused_port}", "--connect-timeout", "2", "--out", tmp_path / "run")
    with Vehicle(pictures(tmp_path, 1), *flags) as vehicle:
        code, printed = vehicle.wait()
    assert (code, printed) == (1, "")
    waiting = [line for line in vehicle.lines if line["message"] == "no connection to the broker"]
    assert len(waiting) == 1
    assert f"127.0.0.1:{unused_port}" in waiting[0]["reason"]
    assert not (tmp_path / "run").exists()


def test_the_default_folder_of_a_run_has_its_time_and_vehicle(
    mosquitto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings are in the order of the runs; the printed path is absolute."""
    source, at, printed = pictures(tmp_path, 2), tmp_path / "at", StringIO()
    at.mkdir()
    monkeypatch.chdir(at)
    config = EdgeConfig(broker=mosquitto_url, model="tiny", vehicle="car-1", closed_loop=True, sinks=())
    with worker(mosquitto_url, null_model()):
        assert run(str(source), config, Console(file=printed, width=160)) == 0
    (folder,) = (at / "runs").iterdir()
    assert read_manifest(folder)["state"] == "complete"
    assert f"The run is in {folder}" in printed.getvalue().splitlines()
    day, time, *vehicle_name = folder.name.split("-")
    assert (len(day), len(time), vehicle_name) == (8, 6, ["car", "1"])
