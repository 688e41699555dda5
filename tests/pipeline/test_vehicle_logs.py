"""Log lines of a vehicle process, as a log collector reads them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud.node import CloudNode
from edge.run import NOTHING_ANSWERED
from ops.broker.broker import Broker
from shared.inference.model import Model
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import WAIT_S, pictures, worker

Line = Mapping[str, Any]


class Logged:
    """A vehicle process and the log lines on its standard error, each a JSON object."""

    def __init__(self, *arguments: object, cwd: Path | None = None) -> None:
        command = [sys.executable, "-m", "skylane", "edge", "play", *map(str, arguments), "--log-format", "json"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.lines: list[Line] = []
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="log-reader")
        self._thread.start()

    def wait_for(self, message: str, after: int = 0, **fields: object) -> int:
        """Waits for a line with this message and these fields; returns its number plus one, to wait for a later one."""

        def found() -> int | None:
            for number, line in enumerate(self.lines[after:], after + 1):
                if line["message"] == message and line.items() >= fields.items():
                    return number
            return None

        with self._arrived:
            assert self._arrived.wait_for(found, WAIT_S), (message, fields, self.lines)
            number = found()
        assert number is not None
        return number

    def end(self) -> tuple[int, str]:
        """Stops the process; returns its exit code and standard output."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Waits for the end of the process; returns its exit code and standard output."""
        assert self.process.stdout is not None
        printed = self.process.stdout.read()
        code = self.process.wait(WAIT_S)
        self._thread.join(WAIT_S)
        return code, printed

    def _read(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            with self._arrived:
                self.lines.append(json.loads(text))
                self._arrived.notify_all()


@contextmanager
def logged(*arguments: object, cwd: Path | None = None) -> Iterator[Logged]:
    """Runs a vehicle process that ends with the block."""
    vehicle = Logged(*arguments, cwd=cwd)
    try:
        yield vehicle
    finally:
        vehicle.process.kill()
        vehicle.wait()
        for stream in (vehicle.process.stdout, vehicle.process.stderr):
            assert stream is not None
            stream.close()


def wait_for_answers(node: CloudNode, count: int) -> None:
    """Waits until a worker has answered so many frames."""
    deadline_s = time.monotonic() + WAIT_S
    while node.counts.get("answered", 0) < count:
        assert time.monotonic() < deadline_s, node.counts
        time.sleep(0.01)


@pytest.fixture
def flags(mosquitto_broker: Broker) -> tuple[str, ...]:
    """Returns the arguments of a run that continues until it is stopped."""
    return ("--broker", mosquitto_broker.url, "--model", "tiny", "--vehicle", "car-1", "--no-sinks", "--loop")


def test_broker_outages_and_leaving_workers_are_logged(
    mosquitto_broker: Broker, model: Model, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The broker is killed and restarted, then the worker leaves; standard output contains only results."""
    port = mosquitto_broker.listener.port
    with (
        ExitStack() as stack,
        logged(pictures(tmp_path, 5), *flags, "--closed-loop", "--out", tmp_path / "run") as vehicle,
    ):
        serving = stack.enter_context(ExitStack())
        node = serving.enter_context(worker(mosquitto_broker.url, model))
        joined = vehicle.wait_for("worker joined")
        vehicle.wait_for("run started", model="tiny 1")
        wait_for_answers(node, 3)
        os.kill(mosquitto_broker.pid, signal.SIGKILL)
        mosquitto_broker.stop()
        vehicle.wait_for("connection lost", after=joined)
        away = vehicle.wait_for("no connection to the broker", after=joined)
        stack.enter_context(Broker.start(port=port, kind="mosquitto"))
        vehicle.wait_for("connection regained", after=away)
        vehicle.wait_for("worker joined", after=away)
        wait_for_answers(node, node.counts["answered"] + 3)
        serving.close()
        vehicle.wait_for("worker left", after=away)
        code, printed = vehicle.end()
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


def test_a_frame_without_an_answer_is_logged_with_its_id_and_reason(
    mosquitto_broker: Broker, model: Model, tmp_path: Path
) -> None:
    """No frame can meet the deadline: similar lines are rate-limited, and the exit code shows the failure."""
    out = tmp_path / "run"
    flags = ("--broker", mosquitto_broker.url, "--model", "tiny", "--vehicle", "car-1", "--no-sinks")
    with (
        worker(mosquitto_broker.url, model),
        logged(pictures(tmp_path, 20), *flags, "--deadline-ms", "0.001", "--closed-loop", "--out", out) as vehicle,
    ):
        code, _ = vehicle.wait()
    assert code == NOTHING_ANSWERED
    dropped = [line for line in vehicle.lines if line["message"] == "frame dropped"]
    assert len(dropped) == 1
    assert dropped[0].items() >= {"level": "warning", "reason": "deadline", "camera": "pictures-20"}.items()
    assert dropped[0]["frame_id"].startswith("car-1/pictures-20/")
    assert vehicle.lines[-1].items() >= {"message": "run failed", "level": "error"}.items()
    assert "none of the 20 frames got a result in time" in vehicle.lines[-1]["reason"]


def test_a_start_without_a_worker_leaves_no_folder(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """There was no run, so there is no folder and no output."""
    source = pictures(tmp_path, 1)
    at = tmp_path / "at"
    at.mkdir()
    (at / "edge.yaml").write_text("connect_timeout_s: 0.2\n")
    flags = ("--broker", mosquitto_broker.url, "--model", "tiny", "--config", "edge.yaml")
    with logged(source, *flags, cwd=at) as vehicle:
        code, printed = vehicle.wait()
    assert (code, printed) == (1, "")
    assert vehicle.lines[-1]["message"] == "ended by an error"
    assert [path.name for path in at.iterdir()] == ["edge.yaml"]


def test_a_start_without_a_broker_is_logged_once(tmp_path: Path) -> None:
    """Connection attempts follow each other several times per second; their lines are rate-limited."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        unused_port = probe.getsockname()[1]
    flags = ("--broker", f"mqtt://127.0.0.1:{unused_port}", "--connect-timeout", "2", "--out", tmp_path / "run")
    with logged(pictures(tmp_path, 1), *flags) as vehicle:
        code, printed = vehicle.wait()
    assert (code, printed) == (1, "")
    waiting = [line for line in vehicle.lines if line["message"] == "no connection to the broker"]
    assert len(waiting) == 1
    assert f"127.0.0.1:{unused_port}" in waiting[0]["reason"]
    assert not (tmp_path / "run").exists()


def test_the_default_folder_of_a_run_has_its_time_and_vehicle(
    mosquitto_broker: Broker, model: Model, tmp_path: Path
) -> None:
    """Listings are in the order of the runs; the printed path is absolute."""
    flags = ("--broker", mosquitto_broker.url, "--model", "tiny", "--vehicle", "car-1", "--no-sinks")
    at = tmp_path / "at"
    at.mkdir()
    with (
        worker(mosquitto_broker.url, model),
        logged(pictures(tmp_path, 2), *flags, "--closed-loop", cwd=at) as vehicle,
    ):
        code, printed = vehicle.wait()
    assert code == 0, vehicle.lines
    (folder,) = (at / "runs").iterdir()
    assert read_manifest(folder)["state"] == "complete"
    assert f"The run is in {folder}" in printed.splitlines()
    day, time, *vehicle_name = folder.name.split("-")
    assert (len(day), len(time), vehicle_name) == (8, 6, ["car", "1"])
