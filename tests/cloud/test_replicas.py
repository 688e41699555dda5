import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from ops.broker.broker import Broker
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.topics import WORKER_STATUS
from shared.mqtt.bus import Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from skylane import cli
from tests.support.command import Command

WAIT_S = 120.0
ALL_READY = "ready node=cloud worker=w replicas=2"


@pytest.fixture
def repository(tmp_path: Path, add_onnx: Callable[[Path, str], None]) -> Path:
    """A repository with one ONNX model, which loads fast."""
    add_onnx(tmp_path, "tiny")
    return tmp_path


@contextmanager
def _running(broker: str, repository: Path, *flags: str) -> Iterator[Command]:
    """Runs `skylane cloud serve --replicas 2`."""
    arguments = ["--broker", broker, "--models", repository, "--device", "cpu", "--worker", "w", "--replicas", "2"]
    with Command("cloud", "serve", *arguments, *flags) as command:
        try:
            yield command
        finally:
            command.end()


def _replicas(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.pid).children()


def _states(broker: str, report: Callable[[str, NodeState], None]) -> MqttBus:
    """A bus that reports the announced states of the workers."""
    bus = MqttBus(Address.parse(broker), "test-states")

    def announced(delivery: Delivery) -> None:
        names = WORKER_STATUS.names_in(delivery.topic)
        assert names is not None
        report(names["worker"], unpack_status(delivery.payload).state)

    bus.subscribe(WORKER_STATUS.filter(), 1, announced)
    return bus


def test_replicas_are_started_restarted_and_drained_together(
    mosquitto_broker: Broker, repository: Path, tmp_path: Path
) -> None:
    """Each replica writes its own resource file."""
    samples = tmp_path / "samples" / "res.csv"
    samples.parent.mkdir()
    with _running(mosquitto_broker.url, repository, "--resources", str(samples)) as command:
        command.wait_for(ALL_READY)
        assert sum(" ready " in line for line in command.log_lines) == 3
        first = next(child for child in _replicas(command) if "w-1.yaml" in " ".join(child.cmdline()))
        first.kill()
        command.wait_for("replica=w-1 reason='was killed by SIGKILL' restart_in_s=1.0")
        command.wait_for("ready node=cloud worker=w-1", times=2)
        assert command.end()[0] == 0, command.log_lines
        for name in ("w-1", "w-2"):
            assert any(f"stopped node=cloud worker={name}" in line for line in command.log_lines)
        assert command.log_lines[-1].endswith("stopped node=cloud worker=w")
    assert {path.name for path in samples.parent.iterdir()} == {"res-1.csv", "res-1-2.csv", "res-2.csv"}


def test_the_health_file_exists_only_while_all_replicas_are_online(
    mosquitto_broker: Broker, repository: Path, tmp_path: Path
) -> None:
    """A killed replica makes the command unhealthy until its successor is ready."""
    file, pause = tmp_path / "health", threading.Event()

    def wait_until(*, exists: bool) -> None:
        for _ in range(round(WAIT_S / 0.05)):
            if file.exists() is exists:
                return
            pause.wait(0.05)
        raise AssertionError(f"the health file is {'missing' if exists else 'still there'}")

    with _running(mosquitto_broker.url, repository, "--health-file", str(file)) as command:
        command.wait_for(ALL_READY)
        wait_until(exists=True)
        _replicas(command)[0].kill()
        wait_until(exists=False)
        command.wait_for("ready", times=4)  # Both, the command, and the successor.
        wait_until(exists=True)
        assert command.end()[0] == 0, command.log_lines
    assert not file.exists()


def test_a_replica_that_is_killed_while_draining_is_an_error(mosquitto_broker: Broker, repository: Path) -> None:
    """Its frames have no replies."""
    with _running(mosquitto_broker.url, repository) as command:
        command.wait_for(ALL_READY)
        first = next(child for child in _replicas(command) if "w-1.yaml" in " ".join(child.cmdline()))
        first.suspend()
        command.send(signal.SIGTERM)
        command.wait_for("stopped node=cloud worker=w-2")
        first.kill()
        assert command.wait()[0] == 1
        assert "not all replicas drained: w-1 was killed by SIGKILL; " in command.log_lines[-1]


def test_replicas_end_with_the_command(mosquitto_broker: Broker, repository: Path) -> None:
    """They drain and report themselves offline even if the command was killed."""
    gone: queue.SimpleQueue[str] = queue.SimpleQueue()

    def report(worker: str, state: NodeState) -> None:
        if state is NodeState.OFFLINE:
            gone.put(worker)

    with _running(mosquitto_broker.url, repository) as command, _states(mosquitto_broker.url, report):
        command.wait_for(ALL_READY)
        children = _replicas(command)
        command.send(signal.SIGKILL)
        assert {gone.get(timeout=WAIT_S), gone.get(timeout=WAIT_S)} == {"w-1", "w-2"}
        _, alive = psutil.wait_procs(children, WAIT_S)
        assert not alive


def test_replicas_start_with_log_level_warning(mosquitto_broker: Broker, repository: Path) -> None:
    """The command reads the READY line of each replica, but does not log it."""
    online: queue.SimpleQueue[str] = queue.SimpleQueue()

    def report(worker: str, state: NodeState) -> None:
        if state is NodeState.ONLINE:
            online.put(worker)

    with (
        _running(mosquitto_broker.url, repository, "--log-level", "warning") as command,
        _states(mosquitto_broker.url, report),
    ):
        while {online.get(timeout=WAIT_S), online.get(timeout=WAIT_S)} != {"w-1", "w-2"}:
            pass
        assert command.end()[0] == 0
    assert command.log_lines == []


def test_a_failed_start_of_a_replica_has_a_reason(mosquitto_broker: Broker, repository: Path) -> None:
    """It is not restarted, because it would fail again."""
    with _running(mosquitto_broker.url, repository, "--model", "huge") as command:
        assert command.wait()[0] == 1
        assert "before all were ready: no model 'huge'" in command.log_lines[-1]


def test_replicas_need_shared_subscriptions(
    embedded_url: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before a model is loaded."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", "--broker", embedded_url, "--models", str(repository), "--replicas", "2"])
    assert ended.value.code == 1
    assert "supports MQTT 3.1.1 only, which cannot share frames between workers" in capsys.readouterr().err


def _neighbours() -> int:
    """A free port whose next one is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


def test_replicas_without_a_broker_listen_at_one_port_each(repository: Path) -> None:
    """A load balancer must reach each replica and its health."""
    port = _neighbours()
    with _running("none", repository, "--no-broker", "--http", f"127.0.0.1:{port}") as command:
        command.wait_for(ALL_READY)
        found = [
            httpx.get(f"http://127.0.0.1:{port + place}/healthz", verify=False, timeout=WAIT_S).json()
            for place in range(2)
        ]
        assert [each["worker"] for each in found] == ["w-1", "w-2"]
        assert command.end()[0] == 0, command.log_lines


def test_replicas_need_a_port_each(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes at once, not when the last replica starts."""
    arguments = ["--no-broker", "--http", "127.0.0.1:65535", "--models", str(repository), "--replicas", "2"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "serve", *arguments])
    assert ended.value.code == 1
    assert "127.0.0.1:65535: replica 2 would need a port above 65535" in capsys.readouterr().err
