"""Clock probes and the replies of workers to them."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from cloud.frontends.clock_responder import ClockResponder
from cloud.serving.request import RequestErrors
from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport
from edge.workers.worker_clocks import ClockProber, ProbeTracker, WorkerClocks
from shared import clock
from shared.clock import Exchange, Offset
from shared.messages.clock_probes import Echo, Probe, pack_echo, unpack_probe
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import ECHOES, PROBES
from shared.mqtt.bus import Ack, Bus, Delivery
from tests.edge.samples import CARD
from tests.support.memory_bus import MemoryBus
from tests.support.waiting import beside, until

WAIT_S = 60.0
MS = 10**6
SECOND_NS = 10**9
NODE = "cloud/w/s9"
AHEAD_NS = 3 * SECOND_NS


def probe_times(
    tracker: ProbeTracker, online: list[tuple[str, str]], until_ms: int, since_ms: int = 0
) -> dict[str, list[int]]:
    """Returns when each worker is probed, in milliseconds, with a check every millisecond."""
    times: dict[str, list[int]] = {name: [] for name, _ in online}
    for at_ms in range(since_ms, until_ms):
        for name in tracker.due(at_ms * MS, online):
            times[name].append(at_ms)
    return times


def clock_reply_to(probe: Probe, node: str = NODE, ahead_ns: int = AHEAD_NS) -> Echo:
    """Returns a clock reply to a probe that took one millisecond to the worker and no time there."""
    at_worker_ns = probe.sent_ns + MS + ahead_ns
    return Echo(probe.session, probe.sequence, probe.sent_ns, at_worker_ns, at_worker_ns, node)


def known(clocks: WorkerClocks, node: str = NODE) -> bool:
    """Returns whether a valid clock reply of a node has been received."""
    return clocks.last_echo(node).at_ns > 0


@pytest.fixture
def clocks() -> WorkerClocks:
    """Returns clocks without any probe."""
    return WorkerClocks()


def test_a_new_worker_is_probed_in_a_burst_and_then_twice_a_second(clocks: WorkerClocks) -> None:
    """The first frames need an error bound; later ones need it to be recent, at little load."""
    (times,) = probe_times(ProbeTracker("s1", clocks), [("w", "s9")], 60_000).values()
    assert times[:16] == list(range(0, 320, 20))
    gaps = [later - earlier for earlier, later in pairwise(times[15:])]
    assert all(400 <= gap <= 601 for gap in gaps)
    assert len(set(gaps)) > 10, "a constant interval could run in step with the frames"


def test_a_restarted_worker_gets_a_new_burst(clocks: WorkerClocks) -> None:
    """It has another clock; a worker that went offline and returns is new as well."""
    tracker = ProbeTracker("s1", clocks)
    assert len(probe_times(tracker, [("w", "s9")], 1000)["w"]) < 20
    assert len(probe_times(tracker, [("w", "s10")], 1320, since_ms=1000)["w"]) == 16
    probe_times(tracker, [], 1400, since_ms=1320)
    assert tracker.next_due_ns() is None
    assert len(probe_times(tracker, [("w", "s10")], 1720, since_ms=1400)["w"]) == 16


def test_a_reconnect_starts_a_new_burst(clocks: WorkerClocks) -> None:
    """The delays of the old connection say nothing about the new one."""
    tracker = ProbeTracker("s1", clocks)
    probe_times(tracker, [("w", "s9")], 2000)
    tracker.restart()
    assert len(probe_times(tracker, [("w", "s9")], 2320, since_ms=2000)["w"]) == 16


def test_many_workers_share_the_probe_rate_of_a_vehicle(clocks: WorkerClocks) -> None:
    """Probes must not become a load."""
    online = [(f"w{number}", "s9") for number in range(200)]
    probed = probe_times(ProbeTracker("s1", clocks), online, 21_000)
    settled = sum(at_ms >= 1_000 for times in probed.values() for at_ms in times)
    assert 20 * 25 < settled < 20 * 40
    assert min(len(times) for times in probed.values()) >= 18


def test_a_clock_reply_gives_the_offset_of_its_node(clocks: WorkerClocks) -> None:
    """The node is the process that the clock reply names."""
    tracker = ProbeTracker("s1", clocks)
    probe = tracker.probe("w", 1000)
    tracker.echoed("w", pack_echo(clock_reply_to(probe)), 1000 + 2 * MS)
    exchange = Exchange(1000, 1000 + MS + AHEAD_NS, 1000 + MS + AHEAD_NS, 1000 + 2 * MS)
    assert clocks.offset(NODE, exchange).offset_ns == AHEAD_NS
    assert not clocks.ignored


def test_a_clock_reply_is_accepted_only_for_a_probe_of_this_vehicle(clocks: WorkerClocks) -> None:
    """A client that can publish clock replies must not be able to change an offset; rejected ones are counted."""
    tracker = ProbeTracker("s1", clocks)
    probe = tracker.probe("w", SECOND_NS)
    echo = clock_reply_to(probe)
    returned_ns = SECOND_NS + 2 * MS
    for strange in (
        replace(echo, session="s0"),
        replace(echo, sequence=probe.sequence + 1),
        replace(echo, sent_ns=probe.sent_ns + 1),
        replace(echo, node="cloud/other/s9"),
        replace(echo, replied_ns=echo.received_ns - 1),
        replace(echo, replied_ns=echo.received_ns + 3 * MS),
    ):
        tracker.echoed("w", pack_echo(strange), returned_ns)
    tracker.echoed("other", pack_echo(echo), returned_ns)
    tracker.echoed("w", b"garbage", returned_ns)
    assert clocks.ignored == {"other_session": 1, "late_or_repeated": 3, "untrue": 3, "unreadable": 1}
    assert not known(clocks)
    for _ in range(3):
        tracker.echoed("w", pack_echo(echo), returned_ns)
    assert known(clocks)
    assert clocks.ignored["late_or_repeated"] == 5


def test_the_number_of_unanswered_probes_is_bounded(clocks: WorkerClocks) -> None:
    """A worker may never answer."""
    tracker = ProbeTracker("s1", clocks)
    sent = [tracker.probe("w", number) for number in range(2000)]
    tracker.echoed("w", pack_echo(clock_reply_to(sent[-513])), 3 * MS)
    assert clocks.ignored == {"late_or_repeated": 1}
    assert not known(clocks)
    tracker.echoed("w", pack_echo(clock_reply_to(sent[-512])), 3 * MS)
    assert known(clocks)


@contextmanager
def probing(bus: Bus, clocks: WorkerClocks, *workers: str) -> Iterator[MqttTransport]:
    """Probes these workers over MQTT in a thread."""
    stop = threading.Event()
    transport = MqttTransport(bus, EdgeConfig(vehicle="car", model=CARD.name), "s1")
    for worker in workers:
        transport.workers.update(worker, pack_status(NodeStatus(NodeState.ONLINE, "s9", 4, (CARD,))))
    with beside(lambda: transport.probe_clocks(clocks, stop)):
        try:
            yield transport
        finally:
            stop.set()


def offset_once_known(clocks: WorkerClocks, node: str = NODE) -> Offset:
    """Waits for the first clock reply of a node and returns its offset."""
    until(lambda: known(clocks, node))
    now_ns = clock.now_ns()
    return clocks.offset(node, Exchange(now_ns - SECOND_NS, now_ns - SECOND_NS // 2, now_ns - SECOND_NS // 2, now_ns))


def test_the_clock_reply_of_a_worker_gives_the_vehicle_its_offset(clocks: WorkerClocks) -> None:
    """Vehicle and worker share a process here, so the offset is 0 within its error bound."""
    with MemoryBus() as bus:
        ClockResponder("w", NODE).open(bus, RequestErrors())
        with probing(bus, clocks, "w"):
            offset = offset_once_known(clocks)
    assert abs(offset.offset_ns) <= offset.error_ns
    assert not clocks.ignored


def test_the_prober_sends_a_burst_after_a_reconnect(clocks: WorkerClocks) -> None:
    """The network thread reports the reconnect and must not wait."""
    probes: queue.SimpleQueue[Probe] = queue.SimpleQueue()
    with MemoryBus() as bus:
        bus.subscribe(PROBES.filter(worker="w"), 0, lambda delivery: probes.put(unpack_probe(delivery.payload)))
        with probing(bus, clocks, "w") as transport:
            first = [probes.get(timeout=WAIT_S).sent_ns for _ in range(16)]
            transport.reconnected()
            transport.workers.update("w", pack_status(NodeStatus(NodeState.ONLINE, "s9", 4, (CARD,))))
            second = [probes.get(timeout=WAIT_S).sent_ns for _ in range(16)]
    for burst in (first, second):
        gaps_ns = [later - earlier for earlier, later in pairwise(burst)]
        assert 0 < min(gaps_ns) < 400 * MS, "only the interval of a burst is this short"


def test_the_queue_of_clock_replies_is_bounded(clocks: WorkerClocks) -> None:
    """Replies beyond the limit of 256, and larger ones than any valid reply, are dropped and counted."""
    prober = ClockProber("s1", clocks, online=list, probe=lambda *_: None)
    prober.echoed("w", bytes(513), 1)
    for _ in range(1000):
        prober.echoed("w", bytes(512), 1)
    assert clocks.ignored == {"unreadable": 1, "too_many": 744}


def test_the_prober_unsubscribes_at_its_end(clocks: WorkerClocks) -> None:
    """A bus may outlive a run."""
    with MemoryBus() as bus:
        with probing(bus, clocks):
            pass
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        bus.publish(ECHOES.of(vehicle="car", worker="w"), b"", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S).no_subscriber


def test_a_clock_reply_with_an_invalid_topic_is_counted(clocks: WorkerClocks) -> None:
    """The wildcard of the subscription also matches names that no worker may have."""
    echoes: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    with MemoryBus() as bus, probing(bus, clocks):
        bus.subscribe(ECHOES.filter(vehicle="car"), 0, echoes.put)
        while not clocks.ignored:
            bus.publish("skylane/v1/echoes/car/a b", b"", qos=0)
            echoes.get(timeout=WAIT_S)
    assert clocks.ignored.keys() == {"topic"}
