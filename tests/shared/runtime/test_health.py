import subprocess
import sys
import threading

import pytest

from shared.encoding.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import WORKER_STATUS
from shared.mqtt.first_connect import BrokerUnreachableError
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.network.broker_options import BrokerOptions
from shared.runtime.health import NotOnlineError, assert_online

pytestmark = pytest.mark.mosquitto
TOPIC = WORKER_STATUS.of(worker="health-test")


def announce(url: str, payload: bytes) -> None:
    """Leave a retained announcement of the worker `health-test`."""
    taken = threading.Event()
    with MqttBus(Address.parse(url), "health-test") as bus:
        bus.publish(TOPIC, payload, qos=1, retained=True, acknowledged=lambda _: taken.set())
        assert taken.wait(60)


def test_a_worker_that_announced_itself_is_online(mosquitto_url: str) -> None:
    """Compose starts the vehicle once this holds: too early, and the first frames have no worker."""
    announce(mosquitto_url, pack_status(NodeStatus(NodeState.ONLINE, "session")))
    assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")
    program = [sys.executable, "-m", "skylane", "health", "--broker", mosquitto_url, "worker", "health-test"]
    assert subprocess.run(program, check=False).returncode == 0


@pytest.mark.parametrize("state", [NodeState.STOPPING, NodeState.OFFLINE])
def test_a_worker_that_said_goodbye_is_not_online(mosquitto_url: str, state: NodeState) -> None:
    """The last will says `offline` for a node that was killed: its container must not stay healthy."""
    announce(mosquitto_url, pack_status(NodeStatus(state, "session")))
    with pytest.raises(NotOnlineError, match=f"worker health-test is {state.value}"):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")


def test_a_broken_announcement_is_not_online(mosquitto_url: str) -> None:
    """What cannot be read proves nothing."""
    announce(mosquitto_url, b"\xc1")
    with pytest.raises(MessageError):
        assert_online(BrokerOptions(mosquitto_url), "worker", "health-test")


def test_a_node_that_never_announced_itself_is_told_in_one_line(mosquitto_url: str) -> None:
    """The line is what `docker inspect` shows of a failed check."""
    program = [
        sys.executable,
        "-m",
        "skylane",
        "health",
        "--timeout",
        "0.2",
        "--broker",
        mosquitto_url,
        "vehicle",
        "nobody",
    ]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"skylane: vehicle nobody has not announced itself at {mosquitto_url}\n"


def test_a_broker_that_is_gone_is_not_health() -> None:
    """A node nobody can reach is of no use, however alive its process."""
    with pytest.raises(BrokerUnreachableError):
        assert_online(BrokerOptions("mqtt://127.0.0.1:1", connect_timeout_s=0.3), "worker", "health-test")
