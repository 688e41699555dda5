"""The name guard over an in-memory bus; `tests/pipeline/test_names.py` uses real brokers and processes."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from shared import clock
from shared.errors import SkylaneError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import VEHICLE_STATUS
from shared.mqtt.bus import Ack, Delivery
from shared.mqtt.name_guard import IdentityError, NameGuard, NameTakenError, client_id
from tests.support.memory_bus import MemoryBus
from tests.support.mqtt_bus import WAIT_S, Inbox

TOPIC = VEHICLE_STATUS.of(vehicle="car-1")


@dataclass
class Node:
    """A vehicle that announces itself and records why it gave up."""

    bus: MemoryBus
    session: str
    age_ms: int = 0
    errors: list[SkylaneError] = field(default_factory=list)
    announcements: int = 0

    def __post_init__(self) -> None:
        """Claims the name as a process that started `age_ms` ago."""
        self.guard = NameGuard(
            "vehicle",
            "car-1",
            self.session,
            announce=self.announce,
            give_up=self.errors.append,
            since_ns=clock.now_ns() - self.age_ms * 10**6,
        )

    def announce(self) -> None:
        """Publishes the node's status."""
        self.announcements += 1
        status = NodeStatus(NodeState.ONLINE, self.session, age_ms=self.guard.age_ms, rival=self.guard.rival)
        self.bus.publish(TOPIC, pack_status(status), qos=1, retained=True)

    def start(self) -> "Node":
        """Subscribes and announces."""
        self.guard.open(self.bus)
        self.announce()
        return self


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    """A bus without messages."""
    with MemoryBus() as opened:
        yield opened


def publish(bus: MemoryBus, status: NodeStatus) -> None:
    """Publishes a status under the node's name."""
    bus.publish(TOPIC, pack_status(status), qos=1, retained=True)


def settle(bus: MemoryBus) -> None:
    """Waits until a status, its answer and the answer to that are delivered."""
    for _ in range(8):
        done = threading.Event()
        bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _, done=done: done.set())  # type: ignore[misc]  # mypy infers no default.
        assert done.wait(WAIT_S)


def retained_status(bus: MemoryBus) -> NodeStatus:
    """Returns the status that the broker retains."""
    inbox = Inbox()
    bus.subscribe(TOPIC, 1, inbox.put)
    return unpack_status(inbox.next().payload)


@pytest.mark.parametrize(("first", "second"), [("aaa", "bbb"), ("bbb", "aaa")])
def test_the_younger_process_gives_up(bus: MemoryBus, first: str, second: str) -> None:
    """Starting a second process must not stop a running vehicle, whatever their session identifiers are."""
    old = Node(bus, first, age_ms=60_000).start()
    settle(bus)
    young = Node(bus, second).start()
    settle(bus)
    assert old.errors == []
    (error,) = young.errors
    assert isinstance(error, NameTakenError)
    assert re.fullmatch(
        r"vehicle 'car-1' is already running \(session \w+, for 60 s\): stop it, or choose another --vehicle",
        str(error),
    )
    assert young.guard.is_lost
    assert retained_status(bus).session == first


@pytest.mark.parametrize("sessions", [("aaa", "bbb"), ("bbb", "aaa")])
def test_one_of_two_processes_that_start_together_stays(bus: MemoryBus, sessions: tuple[str, str]) -> None:
    """Each considers itself older until the session identifiers decide."""
    nodes = [Node(bus, session) for session in sessions]
    for node in nodes:
        node.guard.open(bus)
    for node in nodes:
        node.announce()
    settle(bus)
    assert sorted(len(node.errors) for node in nodes) == [0, 1]
    assert max(node.announcements for node in nodes) < 8


def test_a_slow_link_does_not_make_two_processes_answer_each_other_forever(bus: MemoryBus) -> None:
    """The age in a status is that of its sending, so over a slow link the rival looks younger than it is."""
    node = Node(bus, "bbb", age_ms=60_000)
    for announcements in (1, 2, 2):
        status = NodeStatus(NodeState.ONLINE, "aaa", age_ms=node.guard.age_ms - 1500, rival="bbb")
        node.guard.received(Delivery(TOPIC, pack_status(status), 0))
        assert node.announcements == announcements
    assert isinstance(node.errors[0], NameTakenError)


@pytest.mark.parametrize("state", [NodeState.OFFLINE, NodeState.STOPPING])
def test_a_late_status_of_a_predecessor_is_corrected(bus: MemoryBus, state: NodeState) -> None:
    """A will that arrives after the successor's first status would make it look offline."""
    node = Node(bus, "bbb").start()
    publish(bus, NodeStatus(state, "aaa", age_ms=10**9))
    settle(bus)
    status = retained_status(bus)
    assert (status.session, status.state) == ("bbb", NodeState.ONLINE)
    assert node.errors == []


def test_late_statuses_of_a_dead_predecessor_are_ignored(bus: MemoryBus) -> None:
    """Messages of a killed vehicle may be delivered after its successor has started, and claim a greater age."""
    node = Node(bus, "bbb").start()
    settle(bus)
    for number in range(5):
        publish(bus, NodeStatus(NodeState.ONLINE, "aaa", age_ms=10**7 + number, rival="zzz"))
    settle(bus)
    assert node.errors == []
    status = retained_status(bus)
    assert (status.session, status.rival) == ("bbb", "aaa")


def test_a_late_will_of_the_node_itself_is_corrected(bus: MemoryBus) -> None:
    """A broker may end the old connection of a node after its new one began."""
    node = Node(bus, "bbb").start()
    publish(bus, NodeStatus(NodeState.OFFLINE, "bbb"))
    settle(bus)
    status = retained_status(bus)
    assert (status.session, status.state) == ("bbb", NodeState.ONLINE)
    assert (node.errors, node.announcements) == ([], 2)


def test_a_retained_status_is_not_a_rival(bus: MemoryBus) -> None:
    """A vehicle that died together with its broker is still retained as online."""
    publish(bus, NodeStatus(NodeState.ONLINE, "aaa", age_ms=10**6))
    node = Node(bus, "bbb").start()
    settle(bus)
    assert node.errors == []
    assert retained_status(bus).session == "bbb"


def test_a_closed_guard_does_not_answer(bus: MemoryBus) -> None:
    """The node's goodbye, or the first status of its successor, stays the retained one."""
    node = Node(bus, "aaa", age_ms=1000).start()
    node.guard.close()
    bus.publish(TOPIC, b"garbage", qos=1)
    publish(bus, NodeStatus(NodeState.ONLINE, "bbb"))
    settle(bus)
    assert node.announcements == 1
    assert retained_status(bus).session == "bbb"


def test_a_refused_first_status_means_that_the_name_is_not_allowed(bus: MemoryBus) -> None:
    """Brokers accept the connection and grant the subscription; later refusals have other reasons."""
    node = Node(bus, "aaa")
    node.guard.acknowledged(Ack(accepted=False, no_subscriber=False, reason="Not authorized"))
    (error,) = node.errors
    assert isinstance(error, IdentityError)
    assert str(error).startswith("the broker does not let this process publish as vehicle 'car-1' (Not authorized): ")
    assert "--vehicle" in str(error)
    allowed = Node(bus, "bbb")
    allowed.guard.acknowledged(Ack(accepted=True, no_subscriber=False))
    allowed.guard.acknowledged(Ack(accepted=False, no_subscriber=False, reason="Quota exceeded"))
    assert allowed.errors == []


def test_client_identifiers_are_random() -> None:
    """A client that connects with another's identifier disconnects it."""
    identifiers = {client_id("vehicle", "car-1") for _ in range(100)}
    assert len(identifiers) == 100
    assert all(re.fullmatch(r"skylane-vehicle-car-1-[0-9a-f]{16}", each) for each in identifiers)
