import queue
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from cloud.frontends.clock_responder import ClockResponder
from cloud.serving.request import RequestErrors
from shared import clock
from shared.messages.clock_probes import Echo, Probe, pack_probe, unpack_echo
from shared.messages.topics import ECHOES, PROBES
from shared.mqtt.bus import Ack, Delivery
from tests.support.memory_bus import MemoryBus

WAIT_S = 60.0
SECOND_NS = 10**9


class Rig:
    """A clock responder on a bus in memory, and its replies to all vehicles."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.responder = ClockResponder("w", "cloud/w/s9")
        self.replies: queue.SimpleQueue[tuple[str, Echo]] = queue.SimpleQueue()
        bus.subscribe(ECHOES.filter(), 0, self._hear)
        self.responder.open(bus, RequestErrors())

    def _hear(self, delivery: Delivery) -> None:
        names = ECHOES.names_in(delivery.topic)
        assert names is not None
        assert names["worker"] == "w"
        self.replies.put((names["vehicle"], unpack_echo(delivery.payload)))

    def call(self, payload: bytes, vehicle: str = "car", worker: str = "w") -> None:
        """A vehicle publishes a probe."""
        self.bus.publish(PROBES.of(worker=worker, vehicle=vehicle), payload, qos=0)

    def settle(self) -> None:
        """Wait until all that was published was delivered, and what that made others publish."""
        for _ in range(2):
            done = threading.Event()
            self.bus.publish("tests/settled", b"", qos=1, acknowledged=partial(_set, done))
            assert done.wait(WAIT_S)


def _set(done: threading.Event, _: Ack) -> None:
    done.set()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A running clock responder."""
    with MemoryBus() as bus:
        yield Rig(bus)


def test_a_reply_has_the_times_of_the_worker(rig: Rig) -> None:
    """It goes to the vehicle in the topic."""
    before_ns = clock.now_ns()
    rig.call(pack_probe(Probe("s1", 7, 42)))
    vehicle, echo = rig.replies.get(timeout=WAIT_S)
    assert (vehicle, echo.session, echo.sequence, echo.sent_ns, echo.node) == ("car", "s1", 7, 42, "cloud/w/s9")
    assert before_ns <= echo.received_ns <= echo.replied_ns <= clock.now_ns()


def test_only_probes_to_this_worker_are_answered(rig: Rig) -> None:
    """Each worker has its own clock."""
    rig.call(pack_probe(Probe("s1", 0, 1)), worker="other")
    rig.call(pack_probe(Probe("s1", 1, 1)))
    assert rig.replies.get(timeout=WAIT_S)[1].sequence == 1


def test_unreadable_probes_are_counted(rig: Rig) -> None:
    """The next probe gets a reply."""
    for payload in (b"", b"\xff" * 100, pack_probe(Probe("s1", 0, 1)) + bytes(1000)):
        rig.call(payload)
    rig.call(pack_probe(Probe("s1", 3, 1)))
    assert rig.replies.get(timeout=WAIT_S)[1].sequence == 3
    assert rig.responder.refused == {"unreadable": 3}


def test_an_invalid_topic_is_counted(rig: Rig) -> None:
    """A wildcard also matches invalid names."""
    rig.bus.publish("skylane/v1/probes/w/a b", pack_probe(Probe("s1", 0, 1)), qos=0)
    rig.call(pack_probe(Probe("s1", 3, 1)))
    assert rig.replies.get(timeout=WAIT_S)[1].sequence == 3
    assert rig.responder.refused == {"topic": 1}


def test_the_rate_of_probes_is_limited_per_vehicle(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are sent by the network thread, which also receives frames."""
    now_ns = clock.now_ns()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    for number in range(500):
        rig.call(pack_probe(Probe("s1", number, 1)), vehicle="flooder")
    rig.call(pack_probe(Probe("s1", 0, 1)))
    rig.settle()
    vehicles = [rig.replies.get_nowait()[0] for _ in range(rig.replies.qsize())]
    assert (vehicles.count("flooder"), vehicles.count("car")) == (40, 1)
    assert rig.responder.refused == {"too_often": 460}
    now_ns += SECOND_NS
    for number in range(50):
        rig.call(pack_probe(Probe("s1", number, 1)), vehicle="flooder")
    rig.settle()
    assert rig.replies.qsize() == 10


def test_the_number_of_rate_limits_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients can invent vehicle names; the limit of the vehicle that was silent for the longest time is forgotten."""
    now_ns = clock.now_ns()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    for vehicle in [*["flooder"] * 41, *(f"car-{number}" for number in range(1024)), "flooder"]:
        rig.call(pack_probe(Probe("s1", 0, 1)), vehicle=vehicle)
    rig.settle()
    assert rig.responder.refused == {"too_often": 1}
    assert rig.replies.qsize() == 40 + 1024 + 1
