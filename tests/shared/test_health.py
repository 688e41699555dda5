import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from shared.errors import SkylaneError
from shared.health import assert_online
from shared.messages.load import LoadReport, pack_load
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_metrics import VehicleMetrics, pack_vehicle_metrics
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, VEHICLE_METRICS, VEHICLE_STATUS, WORKER_STATUS
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus
from tests.support.mqtt_bus import Acks, connect

pytestmark = pytest.mark.mosquitto
TOPIC = WORKER_STATUS.of(worker="health-test")


def announce(url: str, payload: bytes) -> None:
    """Publishes a retained status of the worker `health-test`."""
    acks = Acks()
    with connect(url) as bus:
        bus.publish(TOPIC, payload, qos=1, retained=True, acknowledged=acks.put)
        acks.next()


@contextlib.contextmanager
def reporting(url: str, topic: str, report: bytes, *, retained: bool = False) -> Iterator[None]:
    """Publishes a report again and again."""
    ended = threading.Event()

    def report_until_ended(bus: Bus) -> None:
        while not ended.wait(0.1):
            bus.publish(topic, report, qos=0, retained=retained)

    with connect(url) as bus:
        thread = threading.Thread(target=report_until_ended, args=(bus,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bus.publish(topic, b"", qos=0, retained=True)


def test_an_announced_worker_that_reports_is_online(mosquitto_url: str) -> None:
    """Docker Compose starts the vehicle then, so that its first frames find a worker."""
    announce(mosquitto_url, pack_status(NodeStatus(NodeState.ONLINE, "session")))
    with reporting(mosquitto_url, LOADS.of(worker="health-test"), pack_load(LoadReport("session", {})), retained=True):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")
        program = [sys.executable, "-m", "skylane", "health", "--broker", mosquitto_url, "worker", "health-test"]
        assert subprocess.run(program, check=False).returncode == 0


def test_an_announced_vehicle_that_reports_is_online(mosquitto_url: str) -> None:
    """It reports no load, but its metrics."""
    topic, status = VEHICLE_STATUS.of(vehicle="health-car"), pack_status(NodeStatus(NodeState.ONLINE, "session"))
    metrics = VehicleMetrics("session", "m", 1.0, {}, "", None, 0, None)
    with connect(mosquitto_url) as bus:
        bus.publish(topic, status, qos=1, retained=True)
    with reporting(mosquitto_url, VEHICLE_METRICS.of(vehicle="health-car"), pack_vehicle_metrics(metrics)):
        assert_online(BrokerOptions(mosquitto_url), "vehicle", "health-car")


def test_a_status_without_a_sign_of_life_is_not_believed(mosquitto_url: str) -> None:
    """Fault scenario 32: the broker came back with its retained messages, the worker did not; a bridge that is cut is alike.

    Its last load is retained too, and the reports of another process are no sign of life.
    """
    announce(mosquitto_url, pack_status(NodeStatus(NodeState.ONLINE, "session")))
    topic = LOADS.of(worker="health-test")
    with connect(mosquitto_url) as bus:
        bus.publish(topic, pack_load(LoadReport("session", {})), qos=0, retained=True)
    with (
        reporting(mosquitto_url, topic, pack_load(LoadReport("other", {}))),
        reporting(mosquitto_url, topic, b"junk"),
        pytest.raises(SkylaneError, match="worker health-test is online, but silent"),
    ):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")


@pytest.mark.parametrize("state", [NodeState.STOPPING, NodeState.OFFLINE])
def test_a_worker_that_stops_is_not_online(mosquitto_url: str, state: NodeState) -> None:
    """The last will sets `offline` for a node that was killed."""
    announce(mosquitto_url, pack_status(NodeStatus(state, "session")))
    with pytest.raises(SkylaneError, match=f"worker health-test is {state.value}"):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")


def test_an_unreadable_status_is_an_error(mosquitto_url: str) -> None:
    """It does not prove that the node is online."""
    announce(mosquitto_url, b"\xc1")
    with pytest.raises(MessageError):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")


def test_an_unknown_node_is_reported_in_one_line(mosquitto_url: str) -> None:
    """`docker inspect` shows that line of a failed check."""
    flags = ["--timeout", "0.2", "--broker", mosquitto_url, "vehicle", "unknown"]
    program = [sys.executable, "-m", "skylane", "health", *flags]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"skylane: vehicle unknown has not announced itself at {mosquitto_url}\n"


@pytest.mark.parametrize(
    ("state", "online", "problem"),
    [(NodeState.ONLINE, True, None), (NodeState.OFFLINE, False, "worker health-test is offline")],
)
def test_the_answer_as_json(mosquitto_url: str, state: NodeState, online: bool, problem: str | None) -> None:  # noqa: FBT001
    """A node that is not online is an answer too; the exit code is the same as without."""
    announce(mosquitto_url, pack_status(NodeStatus(state, "session")))
    flags = ["--json", "--broker", mosquitto_url, "worker", "health-test"]
    program = [sys.executable, "-m", "skylane", "health", *flags]
    with reporting(mosquitto_url, LOADS.of(worker="health-test"), pack_load(LoadReport("session", {}))):
        ended = subprocess.run(program, capture_output=True, text=True, check=False)
    expected = {"role": "worker", "name": "health-test", "broker": mosquitto_url, "online": online, "problem": problem}
    assert (json.loads(ended.stdout), ended.stderr, ended.returncode) == (expected, "", int(not online))


def test_an_unreachable_broker_is_an_error() -> None:
    """A node that cannot be reached is not healthy, even if its process runs."""
    with pytest.raises(SkylaneError, match="no broker at"):
        assert_online(BrokerOptions("mqtt://127.0.0.1:1", connect_timeout_s=0.3), "worker", "health-test")
