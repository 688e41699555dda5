import queue
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from cloud.frontends.clock_responder import ClockResponder
from cloud.serving.request_errors import RequestErrors
from shared import clock
from shared.messages.clock_probes import Echo, Probe, pack_probe, unpack_echo
from shared.messages.topics import ECHOES, PROBES
from shared.mqtt.bus import Ack, Delivery, MemoryBus

WAIT_S = 60.0
SECOND_NS = 10**9


class Wall:
    """What echoes, on a bus in memory, and what comes back to all vehicles."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.echoes = ClockResponder("w", "cloud/w/s9")
        self.heard: queue.SimpleQueue[tuple[str, Echo]] = queue.SimpleQueue()
        bus.subscribe(ECHOES.filter(), 0, self._hear)
        self.echoes.open(bus, RequestErrors())

    def _hear(self, delivery: Delivery) -> None:
        names = ECHOES.names_in(delivery.topic)
        assert names is not None
        assert names["worker"] == "w"
        self.heard.put((names["vehicle"], unpack_echo(delivery.payload)))

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
def wall() -> Iterator[Wall]:
    """A worker that echoes."""
    with MemoryBus() as bus:
        yield Wall(bus)


def test_a_probe_comes_back_with_the_workers_times(wall: Wall) -> None:
    """By the name that its topic bears, whatever it says itself."""
    before_ns = clock.now_ns()
    wall.call(pack_probe(Probe("s1", 7, 42)))
    vehicle, echo = wall.heard.get(timeout=WAIT_S)
    assert (vehicle, echo.session, echo.sequence, echo.sent_ns, echo.node) == ("car", "s1", 7, 42, "cloud/w/s9")
    assert before_ns <= echo.received_ns <= echo.replied_ns <= clock.now_ns()


def test_only_probes_to_this_worker_are_answered(wall: Wall) -> None:
    """Another worker's clock is another."""
    wall.call(pack_probe(Probe("s1", 0, 1)), worker="other")
    wall.call(pack_probe(Probe("s1", 1, 1)))
    assert wall.heard.get(timeout=WAIT_S)[1].sequence == 1


def test_what_cannot_be_read_is_counted(wall: Wall) -> None:
    """And the next one answered."""
    for payload in (b"", b"\xff" * 100, pack_probe(Probe("s1", 0, 1)) + bytes(1000)):
        wall.call(payload)
    wall.call(pack_probe(Probe("s1", 3, 1)))
    assert wall.heard.get(timeout=WAIT_S)[1].sequence == 3
    assert wall.echoes.refused == {"unreadable": 3}


def test_a_topic_that_names_nobody_is_counted(wall: Wall) -> None:
    """A subscription's wildcard takes in what no name may be."""
    wall.bus.publish("skylane/v1/probes/w/a b", pack_probe(Probe("s1", 0, 1)), qos=0)
    wall.call(pack_probe(Probe("s1", 3, 1)))
    assert wall.heard.get(timeout=WAIT_S)[1].sequence == 3
    assert wall.echoes.refused == {"topic": 1}


def test_a_flood_is_not_answered_and_harms_no_other_vehicle(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo is work on the network thread, where frames are received."""
    now_ns = clock.now_ns()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    for number in range(500):
        wall.call(pack_probe(Probe("s1", number, 1)), vehicle="flooder")
    wall.call(pack_probe(Probe("s1", 0, 1)))
    wall.settle()
    heard = [wall.heard.get_nowait()[0] for _ in range(wall.heard.qsize())]
    assert (heard.count("flooder"), heard.count("car")) == (40, 1)
    assert wall.echoes.refused == {"too_often": 460}
    now_ns += SECOND_NS
    for number in range(50):
        wall.call(pack_probe(Probe("s1", number, 1)), vehicle="flooder")
    wall.settle()
    assert wall.heard.qsize() == 10


def test_so_many_vehicles_are_remembered_and_no_more(wall: Wall) -> None:
    """Whoever may publish could call itself anything."""
    for number in range(1100):
        wall.call(pack_probe(Probe("s1", 0, 1)), vehicle=f"car-{number}")
    wall.settle()
    assert wall.heard.qsize() == 1100
    assert len(wall.echoes._buckets) == 1024
