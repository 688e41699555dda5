"""Two processes with one name on real brokers: the first one continues, the second one ends with an error."""

import os
import queue
import signal
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from ops.processes.child import BenchError
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared import clock
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.messages import topics
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.mqtt.bus import Bus, Delivery
from shared.mqtt.name_guard import NameGuard
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import HEIGHT, WAIT_S, WIDTH, check, connect, null_model, pictures, play, worker


@pytest.fixture(params=["mosquitto_url", "embedded_url"])
def url(request: pytest.FixtureRequest) -> str:
    """Returns the URL of an MQTT 5 broker, then of an MQTT 3.1.1 broker."""
    found: str = request.getfixturevalue(request.param)
    return found


class Statuses:
    """The statuses of a node, in order."""

    def __init__(self, bus: Bus, topic: str) -> None:
        self._statuses: queue.SimpleQueue[NodeStatus] = queue.SimpleQueue()
        bus.subscribe(topic, 1, lambda delivery: self._statuses.put(unpack_status(delivery.payload)))

    def wait_for(self, state: NodeState, session: str) -> None:
        """Waits until a process is in a state."""
        while (status := self._statuses.get(timeout=WAIT_S)) and (status.state, status.session) != (state, session):
            pass


def retained_status(url: str, topic: str) -> NodeStatus:
    """Returns the retained status of a node."""
    statuses: queue.SimpleQueue[NodeStatus] = queue.SimpleQueue()
    with connect(url) as bus:
        bus.subscribe(topic, 1, lambda delivery: statuses.put(unpack_status(delivery.payload)))
        return statuses.get(timeout=WAIT_S)


def test_a_second_worker_with_the_name_ends_with_an_error(mosquitto_url: str) -> None:
    """Otherwise each would get retries meant for the other, and vehicles would see its clock jump."""
    name = f"w-{uuid4().hex[:6]}"
    topic = topics.WORKER_STATUS.of(worker=name)
    with worker(mosquitto_url, null_model(name), name=name) as first:
        message = rf"ended with code 1: .*worker '{name}' is already running \(session {first.session}"
        with (
            pytest.raises(BenchError, match=message),
            NullWorkerProcess(mosquitto_url, NullWorkerSettings(name, name, HEIGHT, WIDTH)) as second,
        ):
            second.read(WAIT_S)
        assert (retained_status(mosquitto_url, topic).session, retained_status(mosquitto_url, topic).state) == (
            first.session,
            NodeState.ONLINE,
        )
    assert retained_status(mosquitto_url, topic).state is NodeState.OFFLINE


def test_a_second_vehicle_with_the_name_ends_with_a_complete_log(
    url: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for its frames in flight before it ends."""
    name = f"car-{uuid4().hex[:6]}"
    topic = topics.VEHICLE_STATUS.of(vehicle=name)
    lost: list[SkylaneError] = []
    with worker(url, model), connect(url) as bus:

        def announce() -> None:
            if not has_log.is_set():
                return
            status = NodeStatus(NodeState.ONLINE, "first", age_ms=first.age_ms, rival=first.rival)
            bus.publish(topic, pack_status(status), qos=1, retained=True)

        def on_frame(_: Delivery) -> None:
            has_log.set()
            announce()

        has_log = threading.Event()  # Set when the first frame is in flight.
        since_ns = clock.now_ns() - 3600 * 10**9
        first = NameGuard("vehicle", name, "first", announce=announce, give_up=lost.append, since_ns=since_ns)
        first.open(bus)
        bus.subscribe(topics.FRAMES.filter(vehicle=name), 1, on_frame)
        code, _ = play(pictures(tmp_path, 5), url, tmp_path / name, loop=True, sinks=())
        assert (retained_status(url, topic).session, lost) == ("first", [])
    assert code == 1
    assert f"vehicle '{name}' is already running (session first" in capsys.readouterr().err
    rows = list(read_rows(tmp_path / name))
    check(rows)
    manifest = read_manifest(tmp_path / name)
    assert manifest["state"] == "complete"
    assert manifest["frames_read"] == len(rows) == sum(manifest["outcomes"].values())


def test_the_last_will_of_a_predecessor_does_not_take_a_worker_offline(mosquitto_url: str) -> None:
    """A process that hung dies long after its successor started, and the broker publishes its last will."""
    name = f"w-{uuid4().hex[:6]}"
    topic = topics.WORKER_STATUS.of(worker=name)
    with connect(mosquitto_url) as bus:
        statuses = Statuses(bus, topic)
        with NullWorkerProcess(mosquitto_url, NullWorkerSettings(name, name, HEIGHT, WIDTH)) as dead:
            os.kill(dead.pid, signal.SIGSTOP)
            with worker(mosquitto_url, null_model(name), name=name) as living:
                statuses.wait_for(NodeState.ONLINE, living.session)
                os.kill(dead.pid, signal.SIGKILL)
                statuses.wait_for(NodeState.OFFLINE, dead.session)
                statuses.wait_for(NodeState.ONLINE, living.session)
                assert retained_status(mosquitto_url, topic).session == living.session
