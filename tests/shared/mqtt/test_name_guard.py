"""One process by one name, over a bus in memory; `tests/pipeline/test_names.py` has real brokers and processes."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from shared.errors import SkylaneError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import VEHICLE_STATUS
from shared.mqtt.bus import Ack, Delivery, MemoryBus
from shared.mqtt.name_guard import IdentityError, NameGuard, NameTakenError, client_id

WAIT_S = 60.0
TOPIC = VEHICLE_STATUS.of(vehicle="car-1")


@dataclass
class Node:
    """A vehicle that announces itself, and what it gave up for."""

    bus: MemoryBus
    session: str
    age_ms: int = 0
    gave_up: list[SkylaneError] = field(default_factory=list)
    announced: int = 0

    def __post_init__(self) -> None:
        """Claim the name as one that has been there for `age_ms`."""
        self.claim = NameGuard("vehicle", "car-1", self.session, announce=self.announce, give_up=self.gave_up.append)
        self.claim._since_ns -= self.age_ms * 10**6

    def announce(self) -> None:
        """Say that it is there."""
        self.announced += 1
        status = NodeStatus(NodeState.ONLINE, self.session, age_ms=self.claim.age_ms, rival=self.claim.rival)
        self.bus.publish(TOPIC, pack_status(status), qos=1, retained=True)

    def start(self) -> "Node":
        """Listen and announce."""
        self.claim.open(self.bus)
        self.announce()
        return self


@contextmanager
def _bus() -> Iterator[MemoryBus]:
    with MemoryBus() as bus:
        yield bus


def _settle(bus: MemoryBus) -> None:
    for _ in range(8):  # A word, its answer, and the answer to that.
        done = threading.Event()
        bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _, done=done: done.set())  # type: ignore[misc]  # mypy infers no default.
        assert done.wait(WAIT_S)


def _kept(bus: MemoryBus) -> NodeStatus:
    return unpack_status(bus._retained[TOPIC])


@pytest.mark.parametrize(("first", "second"), [("aaa", "bbb"), ("bbb", "aaa")])
def test_the_one_that_came_second_gives_up(first: str, second: str) -> None:
    """Whatever their sessions are, a running vehicle must not be stopped by starting another."""
    with _bus() as bus:
        old = Node(bus, first, age_ms=60_000).start()
        _settle(bus)
        young = Node(bus, second).start()
        _settle(bus)
        assert old.gave_up == []
        (error,) = young.gave_up
        assert isinstance(error, NameTakenError)
        assert re.fullmatch(
            r"vehicle 'car-1' runs already \(session \w+, for 60 s\): stop it, or choose another --vehicle", str(error)
        )
        assert young.claim.is_lost
        assert _kept(bus).session == first


def test_of_two_that_begin_at_once_one_stays() -> None:
    """Each takes itself for the older one until their sessions decide; never both, never none."""
    for sessions in (("aaa", "bbb"), ("bbb", "aaa")):
        with _bus() as bus:
            nodes = [Node(bus, session) for session in sessions]
            for node in nodes:
                node.claim.open(bus)
            for node in nodes:
                node.announce()
            _settle(bus)
            assert sorted(len(node.gave_up) for node in nodes) == [0, 1]
            assert max(node.announced for node in nodes) < 8


def test_messages_that_take_long_do_not_have_two_answer_each_other_for_ever() -> None:
    """The age in a message is that of when it was sent: over a slow link the younger looks younger than it is."""
    with _bus() as bus:
        node = Node(bus, "bbb", age_ms=60_000)
        for announced in (1, 2, 2):
            status = NodeStatus(NodeState.ONLINE, "aaa", age_ms=node.claim.age_ms - 1500, rival="bbb")
            node.claim.heard(Delivery(TOPIC, pack_status(status), 0))
            assert node.announced == announced
        assert isinstance(node.gave_up[0], NameTakenError)


@pytest.mark.parametrize("state", [NodeState.OFFLINE, NodeState.STOPPING])
def test_the_late_word_of_a_predecessor_is_corrected(state: NodeState) -> None:
    """A will that comes after the successor has announced itself would have it offline for everybody."""
    with _bus() as bus:
        node = Node(bus, "bbb").start()
        bus.publish(TOPIC, pack_status(NodeStatus(state, "aaa", age_ms=10**9)), qos=1, retained=True)
        _settle(bus)
        assert (_kept(bus).session, _kept(bus).state) == ("bbb", NodeState.ONLINE)
        assert node.gave_up == []


def test_the_late_words_of_a_dead_predecessor_end_nobody() -> None:
    """What a killed vehicle left in a link that was down comes after its successor's first word, and says it is older."""
    with _bus() as bus:
        node = Node(bus, "bbb").start()
        _settle(bus)
        for number in range(5):
            late = NodeStatus(NodeState.ONLINE, "aaa", age_ms=10**7 + number, rival="zzz")
            bus.publish(TOPIC, pack_status(late), qos=1, retained=True)
        _settle(bus)
        assert node.gave_up == []
        assert (_kept(bus).session, _kept(bus).rival) == ("bbb", "aaa")


def test_a_late_will_of_its_own_is_corrected() -> None:
    """A broker that ends an old connection after the new one began has the node offline, though it is there."""
    with _bus() as bus:
        node = Node(bus, "bbb").start()
        bus.publish(TOPIC, pack_status(NodeStatus(NodeState.OFFLINE, "bbb")), qos=1, retained=True)
        _settle(bus)
        assert (_kept(bus).session, _kept(bus).state) == ("bbb", NodeState.ONLINE)
        assert (node.gave_up, node.announced) == ([], 2)


def test_what_the_broker_kept_is_no_rival() -> None:
    """A vehicle that died with its broker half an hour ago is retained as online."""
    with _bus() as bus:
        bus.publish(TOPIC, pack_status(NodeStatus(NodeState.ONLINE, "aaa", age_ms=10**6)), qos=1, retained=True)
        node = Node(bus, "bbb").start()
        _settle(bus)
        assert node.gave_up == []
        assert _kept(bus).session == "bbb"


def test_a_node_that_leaves_answers_no_more() -> None:
    """Its own goodbye, and a successor's first word, are the last."""
    with _bus() as bus:
        node = Node(bus, "aaa", age_ms=1000).start()
        node.claim.close()
        bus.publish(TOPIC, pack_status(NodeStatus(NodeState.ONLINE, "bbb")), qos=1, retained=True)
        bus.publish(TOPIC, b"garbage", qos=1)
        _settle(bus)
        assert node.announced == 1
        assert _kept(bus).session == "bbb"


def test_a_refused_status_tells_that_the_name_is_anothers() -> None:
    """The broker lets anyone connect and grants any subscription: only this tells, and only the first time."""
    with _bus() as bus:
        node = Node(bus, "aaa")
        node.claim.acknowledged(Ack(accepted=False, no_subscriber=False, reason="Not authorized"))
        (error,) = node.gave_up
        assert isinstance(error, IdentityError)
        assert str(error).startswith("the broker does not let this process speak as vehicle 'car-1' (Not authorized): ")
        assert "--vehicle" in str(error)
        spoken = Node(bus, "bbb")
        spoken.claim.acknowledged(Ack(accepted=True, no_subscriber=False))
        spoken.claim.acknowledged(Ack(accepted=False, no_subscriber=False, reason="Quota exceeded"))
        assert spoken.gave_up == []


def test_client_ids_cannot_be_guessed() -> None:
    """Who connects by another's id throws it out."""
    made = {client_id("vehicle", "car-1") for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"skylane-vehicle-car-1-[0-9a-f]{16}", each) for each in made)
