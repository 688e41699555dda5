import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from cloud.config import CloudConfig
from cloud.engines.tensorflow.runtime import tf
from ops.processes.worker_process import Worker, WorkerError
from shared.config import read_yaml
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.logs import read_line
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.node_status import NodeState, NodeStatus, unpack_status
from shared.messages.topics import FRAMES, MASKS, WORKER_STATUS, FrameId
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from skylane import cli

WAIT_S = 120.0
HEIGHT, WIDTH = 8, 12


def test_a_worker_process_drains_on_termination_signals(
    mosquitto_url: str, repository: Path, workshop: Any, pictures: Any, tmp_path: Path
) -> None:
    """It announces the stop, serves the accepted frames, reports itself offline, and exits with code 0.

    A second signal while it drains has no effect.
    """
    name, vehicle = f"worker-{uuid4().hex[:6]}", f"car-{uuid4().hex[:6]}"
    answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
    statuses: queue.SimpleQueue[NodeStatus] = queue.SimpleQueue()
    log = tmp_path / "worker.log"
    with MqttBus(Address.parse(mosquitto_url), f"test-{vehicle}") as bus:
        bus.subscribe(MASKS.filter(vehicle=vehicle), 1, lambda delivery: answers.put(unpack_result(delivery.payload)))
        bus.subscribe(WORKER_STATUS.of(worker=name), 1, lambda delivery: statuses.put(unpack_status(delivery.payload)))
        with Worker(mosquitto_url, models=repository, model="tiny", name=name, device="cpu", log=log) as worker:
            online = statuses.get(timeout=WAIT_S)
            assert (online.state, online.cards[0].name) == (NodeState.ONLINE, "tiny")
            frame = FrameMessage(
                id=FrameId(vehicle, "left", "s1", 0),
                model="tiny",
                layout=Layout.RGB8,
                shape=(HEIGHT, WIDTH, 3),
                codec="raw",
                geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
                stamp_ns=0,
                data=pictures[0].tobytes(),
            )
            bus.publish(FRAMES.of(model="tiny", vehicle=vehicle, camera="left"), pack_frame(frame), qos=1)
            answer = answers.get(timeout=WAIT_S)
            assert (answer.status, answer.shape) == (Status.ANSWERED, (HEIGHT, WIDTH))
            mask = image_codecs.decode_mask(answer.data, answer.codec, (HEIGHT, WIDTH))
            np.testing.assert_array_equal(mask, workshop.direct(pictures[:1].astype(np.float32))[0])
            os.kill(worker.pid, signal.SIGHUP)
            assert statuses.get(timeout=WAIT_S).state is NodeState.STOPPING
            os.kill(worker.pid, signal.SIGTERM)
            os.kill(worker.pid, signal.SIGHUP)
            assert statuses.get(timeout=WAIT_S).state is NodeState.OFFLINE
        assert worker.exit_code == 0
    lines = log.read_text(encoding="utf-8").splitlines()
    entries = [entry for line in lines if (entry := read_line(line)) is not None]
    assert len(entries) == len(lines)
    assert all((entry.fields["node"], entry.fields["worker"]) == ("cloud", name) for entry in entries)
    events = [entry.event for entry in entries]
    wanted = ["starting", "loading model", "model loaded", "connected to broker", "ready", "draining"]
    assert [event for event in events if event in wanted] == wanted
    assert "vehicle joined" in events  # Its place varies: it is logged after the reply.
    assert (events[-1], entries[-1].fields["answered"]) == ("stopped", "1")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--http", "8000"], "--http: cannot listen at '8000': the port is missing: write HOST:PORT"),
        (
            ["--grpc", "127.0.0.1:99999"],
            "--grpc: cannot listen at '127.0.0.1:99999': the port must be a number from 0 to 65535: write HOST:PORT",
        ),
        (["--http", ":8000", "--grpc", ":8000"], "--http and --grpc cannot share :8000"),
        (["--http", ":0", "--images", "nowhere"], "'--images': Directory 'nowhere' does not exist"),
        (["--http", ":0", "--tokens", "nowhere"], "'--tokens': File 'nowhere' does not exist"),
        (["--http", ":0", "--origin", "dashboard.example"], "--origin: origin 'dashboard.example' is invalid"),
        (["--http", ":0", "--tokens", "README.md"], "README.md, line 1: is not NAME TOKEN"),
        (
            ["--http", ":0", "--gateway-tls-cert", "README.md", "--gateway-tls-key", "README.md"],
            "cannot be used for TLS",
        ),
    ],
)
def test_invalid_gateway_options_are_reported_before_models_are_loaded(
    flags: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading a large model takes minutes."""
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("Neither tokens nor a certificate\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", "--no-broker", "--models", str(tmp_path), *flags])
    assert ended.value.code == (2 if "--" in problem else 1)
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "reason"), [([], "no model 'huge'"), (["--help"], "it logged no error")])
def test_a_failed_start_has_a_reason(repository: Path, flags: list[str], reason: str) -> None:
    """It is the last line of the log; a worker can also end without one."""
    with pytest.raises(WorkerError, match=rf"the worker was not ready: .*{reason}"):
        Worker("mqtt://127.0.0.1:1", models=repository, model="huge", flags=flags)
    assert not [thread for thread in threading.enumerate() if thread.name == "worker-lines"]


def test_a_missing_gpu_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Using the CPU instead would give misleading measurements."""
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", "--models", str(repository), "--device", "gpu:0"])
    assert ended.value.code == 1
    assert "device 'gpu:0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--engine", "tensorflwo"), "'tensorflwo' is not one of"),
        (("--precision", "fp8"), "'fp8' is not one of"),
        (("--engine", "tflite"), "engine 'tflite' does not read frozen_graph: use tensorflow, openvino"),
        (("--threads", "-1"), "Invalid value for '--threads': -1 is too small: give a whole number from 0 to 1024"),
        (
            ("--encoders", "2"),
            "--encoders is no option: write the key `encoders` into a file, and give it with --config",
        ),
        (("--operator", "a/b"), "Error: --operator: operator 'a/b' is not allowed"),
    ],
)
def test_invalid_options_are_errors(
    repository: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str], expected: str
) -> None:
    """The message is one line, before the worker is ready."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", "--models", str(repository), "--device", "cpu", *flags])
    assert ended.value.code
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_engine_in_a_configuration_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message suggests the nearest name."""
    config = tmp_path / "cloud.yaml"
    config.write_text("engine: openvinno\n")
    with pytest.raises(SystemExit):
        cli.main(["cloud", "serve", "--config", str(config)])
    assert "engine: no engine 'openvinno': did you mean openvino?" in capsys.readouterr().err


def test_the_warm_up_can_be_disabled(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first frames then show the cold start."""
    config = tmp_path / "cloud.yaml"
    config.write_text("connect_timeout_s: 0.1\n")
    arguments = ["--models", str(repository), "--device", "cpu", "--broker", "mqtt://127.0.0.1:1"]
    for runs, is_warm in (("0", False), ("2", True)):
        with pytest.raises(SystemExit):
            cli.main(["cloud", "serve", "--config", str(config), *arguments, "--warm-up", runs])
        (loaded,) = (line for line in capsys.readouterr().err.splitlines() if " model loaded " in line)
        assert ("cold_ms=" in loaded) == is_warm


def test_a_worker_can_be_sampled(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is not overwritten."""
    config, resources = tmp_path / "cloud.yaml", tmp_path / "resources.csv"
    config.write_text("connect_timeout_s: 0.1\n")
    arguments = ["--models", str(repository), "--device", "cpu", "--broker", "mqtt://127.0.0.1:1", "--worker", "w"]
    for expected in ("127.0.0.1:1", f"{resources} already exists: choose another file"):
        with pytest.raises(SystemExit):
            cli.main(["cloud", "serve", "--config", str(config), *arguments, "--resources", str(resources)])
        assert expected in capsys.readouterr().err
    nodes = [line.split(",")[1] for line in resources.read_text().splitlines()]
    assert nodes[:3] == ["node", "machine", "worker/w"]


def test_the_shipped_configuration_is_valid() -> None:
    """This includes the settings in its comments."""
    path = Path(__file__).parents[2] / "configs" / "cloud.yaml"
    assert read_yaml(path, CloudConfig) == CloudConfig(models=("road-small",))
    keys = {line.removeprefix("# ").partition(":")[0] for line in path.read_text().splitlines() if ":" in line}
    assert CloudConfig.model_fields.keys() <= keys


def test_help_needs_no_tensorflow() -> None:
    """The help must appear at once."""
    program = "import sys, runpy; sys.argv = ['skylane', 'cloud', 'serve', '--help']"
    program += "\ntry: runpy.run_module('skylane', run_name='__main__')\nexcept SystemExit: pass"
    program += "\nprint('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
