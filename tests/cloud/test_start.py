"""The start of a worker: invalid models, ports in use, too few threads, and its log."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloud.engines.tensorflow.runtime import tf
from shared.logs import READY, LogLine, read_line
from skylane import cli
from tests.support.command import Command

WAIT_S = 240.0


@pytest.fixture
def repository(workshop: Any) -> Path:
    """A repository of a TensorFlow model that can be served and one whose file is damaged."""
    graph = workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8), batch=1)
    workshop.add("tiny", graph, warm_up={"runs": 1})
    workshop.add("broken", b"no graph")
    root: Path = workshop.root
    return root


def serving(repository: Path, *flags: str) -> Command:
    """Starts `skylane cloud serve` without a broker; it ends with the block."""
    arguments = ["--no-broker", "--models", repository, "--device", "cpu", "--worker", "w", "--http", "127.0.0.1:0"]
    return Command("cloud", "serve", *arguments, *flags)


def line(command: Command, event: str) -> LogLine:
    """Waits for the worker's line of an event."""

    def found() -> LogLine | None:
        entries = (entry for text in command.log_lines if (entry := read_line(text)) is not None)
        return next((entry for entry in entries if (entry.event, entry.fields["worker"]) == (event, "w")), None)

    assert command.wait_until(found, WAIT_S), command.log_lines
    entry = found()
    assert entry is not None
    return entry


def test_a_bad_model_of_a_repository_is_reported_and_the_others_are_served(repository: Path) -> None:
    """The reason is in the log and in the list of models."""
    with serving(repository, "--log-format", "json") as worker:
        port = line(worker, READY).fields["http_port"]
        models = httpx.post(f"http://127.0.0.1:{port}/v2/repository/index", timeout=WAIT_S).json()
        assert {each["name"]: each["state"] for each in models} == {"tiny": "READY", "broken": "UNAVAILABLE"}
        (refused,) = (json.loads(text) for text in worker.log_lines if "model refused" in text)
        assert (refused["level"], refused["model"]) == ("error", "broken")
        assert "broken" in refused["reason"]
        (reason,) = (each["reason"] for each in models if each["name"] == "broken")
        assert reason == refused["reason"]
        assert worker.end() == (0, "")
    # Notices of TensorFlow, Keras and absl would break a log collector.
    assert all({"time", "level", "message", "worker"} <= json.loads(text).keys() for text in worker.log_lines)
    entries = [entry for text in worker.log_lines if (entry := read_line(text)) is not None]
    assert {entry.fields["node"] for entry in entries} == {"cloud"}
    # The limit of a container that runs the tests may be too low.
    problems = [entry.event for entry in entries if entry.level != "info" and "pids_limit" not in entry.event]
    assert problems == ["model refused"]


def test_a_repository_without_a_valid_model_ends_the_start(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has the reason for each model."""
    workshop.add("first", b"no graph")
    workshop.add("second", b"no graph either", sha256="0" * 64)
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", "--no-broker", "--http", ":0", "--models", str(workshop.root)])
    assert ended.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"skylane: no model of repository {workshop.root} can be served: first: " in last
    assert "; second: " in last


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_port_in_use_is_reported_before_models_and_broker(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models and broker are missing too, and would be reported otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        flags = [f"--{kind}", address, "--broker", "mqtt://127.0.0.1:1", "--models", str(tmp_path)]
        with pytest.raises(SystemExit) as ended:
            cli.main(["cloud", "serve", *flags])
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"skylane: --{kind}: cannot listen at {address}: the port is in use: stop the program that listens there, "
        "or choose another port (0: any free port)"
    )


_TOO_FEW_THREADS = """
import os, resource, sys
from pathlib import Path
from shared.models.manifest import Placement
from cloud.models.loader import ModelLoader
from cloud.config import CloudConfig
from shared.models.repository import Repository
from shared.messages.control import Verb
from tests.support.tiny_model import model
from tests.support.control import WorkerRig
from tests.support.gateway import memory_bus

loader = ModelLoader(Repository(Path(sys.argv[1])), Placement(device="cpu"), warm_up_runs=1)
settings = CloudConfig(worker="w")
with memory_bus() as bus:
    rig = WorkerRig(bus, loader, [model(name="first")], settings, with_loader=True)
    assert rig.ready.wait(60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() == 0:
        os.setuid(65534)  # The limit does not hold for root.
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    print(rig.request(Verb.LOAD, "second").error)
    rig.send(1, "first")
    print(rig.answer().status.value)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    print(rig.request(Verb.LOAD, "second").error or "loaded")
    rig.node.stop()
    rig.thread.join()
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can read, as pytest's own cannot."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        yield Path(folder)


def test_a_load_without_enough_threads_fails(open_folder: Path, add_onnx: Callable[[Path, str], None]) -> None:
    """A library in C++ would abort the process under a container's pids_limit."""
    add_onnx(open_folder, "second")
    done = subprocess.run(
        [sys.executable, "-c", _TOO_FEW_THREADS, str(open_folder)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "threads exhausted: raise the container's pids_limit (outside of one, 'ulimit -u'), or lower --threads",
        "answered",
        "loaded",
    ], done.stderr
