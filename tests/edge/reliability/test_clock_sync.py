import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from cloud.frontends.clock_responder import Echoes
from cloud.serving.request_errors import RequestErrors
from edge.reliability.clock_sync import Probes
from edge.reliability.worker_clocks import Clocks
from edge.transports.mqtt.clock_prober import MqttClockProber
from shared import clock
from shared.clock import Exchange, Offset
from shared.messages.clock_probes import Echo, Probe, pack_echo, unpack_probe
from shared.messages.topics import ECHOES, PROBES
from shared.mqtt.bus import Bus, Delivery, MemoryBus

WAIT_S = 60.0
MS = 10**6
SECOND_NS = 10**9
NODE = "cloud/w/s9"
AHEAD_NS = 3 * SECOND_NS


def times_asked(
    probes: Probes, online: list[tuple[str, str]], until_ms: int, since_ms: int = 0
) -> dict[str, list[int]]:
    """When each worker is asked, in milliseconds, if the probing thread looks every millisecond."""
    asked: dict[str, list[int]] = {name: [] for name, _ in online}
    for at_ms in range(since_ms, until_ms):
        for name in probes.due(at_ms * MS, online):
            asked[name].append(at_ms)
    return asked


def echo_of(probe: Probe, node: str = NODE, ahead_ns: int = AHEAD_NS) -> Echo:
    """An echo after a millisecond on the way and no time at the worker."""
    there_ns = probe.sent_ns + MS + ahead_ns
    return Echo(probe.session, probe.sequence, probe.sent_ns, there_ns, there_ns, node)


def known(clocks: Clocks, node: str = NODE) -> bool:
    """Whether a probe has told of a node's clock."""
    return node in clocks._probed


@pytest.fixture
def clocks() -> Clocks:
    """Nothing is known yet."""
    return Clocks()


def test_a_new_worker_is_asked_a_burst_and_then_twice_a_second(clocks: Clocks) -> None:
    """The first frames need a bound; later ones need it fresh, and the link is theirs."""
    (asked,) = times_asked(Probes("s1", clocks), [("w", "s9")], 60_000).values()
    assert asked[:16] == list(range(0, 320, 20))
    gaps = [later - earlier for earlier, later in pairwise(asked[15:])]
    assert all(400 <= gap <= 601 for gap in gaps)
    assert len(set(gaps)) > 10, "an even pace could keep step with the frames"


def test_a_worker_that_is_started_again_is_new(clocks: Clocks) -> None:
    """It has another clock. One that went is asked no more, and one that comes back is new as well."""
    probes = Probes("s1", clocks)
    assert len(times_asked(probes, [("w", "s9")], 1000)["w"]) < 20
    assert len(times_asked(probes, [("w", "s10")], 1320, since_ms=1000)["w"]) == 16
    times_asked(probes, [], 1400, since_ms=1320)
    assert probes.next_ns() is None
    assert len(times_asked(probes, [("w", "s10")], 1720, since_ms=1400)["w"]) == 16


def test_another_connection_is_another_link(clocks: Clocks) -> None:
    """After a reconnect the old delays tell nothing of the new ones."""
    probes = Probes("s1", clocks)
    times_asked(probes, [("w", "s9")], 2000)
    probes.begin_anew()
    assert len(times_asked(probes, [("w", "s9")], 2320, since_ms=2000)["w"]) == 16


def test_many_workers_share_what_one_vehicle_asks(clocks: Clocks) -> None:
    """Probing must not grow into a load."""
    online = [(f"w{number}", "s9") for number in range(200)]
    asked = times_asked(Probes("s1", clocks), online, 21_000)
    settled = sum(at_ms >= 1_000 for times in asked.values() for at_ms in times)
    assert 20 * 25 < settled < 20 * 40
    assert min(len(times) for times in asked.values()) >= 18


def test_an_echo_tells_its_nodes_clock(clocks: Clocks) -> None:
    """Of the process that answered, as it names itself."""
    probes = Probes("s1", clocks)
    probe = probes.probe("w", 1000)
    probes.echoed("w", pack_echo(echo_of(probe)), 1000 + 2 * MS)
    exchange = Exchange(1000, 1000 + MS + AHEAD_NS, 1000 + MS + AHEAD_NS, 1000 + 2 * MS)
    assert clocks.offset(NODE, exchange).offset_ns == AHEAD_NS
    assert not clocks.ignored


def test_only_the_answer_to_an_own_probe_is_believed(clocks: Clocks) -> None:
    """Whoever may publish an echo must not be able to set a clock; all that is not believed is counted."""
    probes = Probes("s1", clocks)
    probe = probes.probe("w", SECOND_NS)
    echo = echo_of(probe)
    returned_ns = SECOND_NS + 2 * MS
    for strange in (
        replace(echo, session="s0"),
        replace(echo, sequence=probe.sequence + 1),
        replace(echo, sent_ns=probe.sent_ns + 1),
        replace(echo, node="cloud/other/s9"),
        replace(echo, replied_ns=echo.received_ns - 1),
        replace(echo, replied_ns=echo.received_ns + 3 * MS),
    ):
        probes.echoed("w", pack_echo(strange), returned_ns)
    probes.echoed("other", pack_echo(echo), returned_ns)
    probes.echoed("w", b"garbage", returned_ns)
    assert clocks.ignored == {"other_session": 1, "late_or_repeated": 3, "untrue": 3, "unreadable": 1}
    assert not clocks._probed
    for _ in range(3):
        probes.echoed("w", pack_echo(echo), returned_ns)
    assert known(clocks)
    assert clocks.ignored["late_or_repeated"] == 5


def test_what_is_never_answered_is_forgotten(clocks: Clocks) -> None:
    """A worker may be silent for as long as the vehicle lives."""
    probes = Probes("s1", clocks)
    sent = [probes.probe("w", number) for number in range(2000)]
    assert len(probes._unanswered) == 512
    probes.echoed("w", pack_echo(echo_of(sent[0])), 3 * MS)
    assert clocks.ignored == {"late_or_repeated": 1}
    probes.echoed("w", pack_echo(echo_of(sent[-1])), 3 * MS)
    assert known(clocks)


@contextmanager
def probing(bus: Bus, clocks: Clocks, *online: tuple[str, str]) -> Iterator[MqttClockProber]:
    """The thread, asking these workers."""
    stop = threading.Event()
    prober = MqttClockProber(bus, vehicle="car", session="s1", online=lambda: online)
    thread = threading.Thread(target=prober.run, args=(clocks, stop))
    thread.start()
    try:
        yield prober
    finally:
        stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def offset_once_known(clocks: Clocks, node: str = NODE) -> Offset:
    """What is known of a node's clock, as soon as a probe has told it."""
    deadline_ns = clock.now_ns() + round(WAIT_S * SECOND_NS)
    pause = threading.Event()
    while not known(clocks, node):
        assert clock.now_ns() < deadline_ns, f"no echo from {node}"
        pause.wait(0.01)
    now_ns = clock.now_ns()
    return clocks.offset(node, Exchange(now_ns - SECOND_NS, now_ns - SECOND_NS // 2, now_ns - SECOND_NS // 2, now_ns))


def test_a_worker_echoes_and_the_vehicle_knows_its_clock(clocks: Clocks) -> None:
    """Both ends, over a bus in memory; the worker's clock is the vehicle's own here."""
    with MemoryBus() as bus:
        Echoes("w", NODE).open(bus, RequestErrors())
        with probing(bus, clocks, ("w", "s9")):
            offset = offset_once_known(clocks)
    assert abs(offset.offset_ns) <= offset.error_ns
    assert not clocks.ignored


def test_after_a_reconnect_a_burst_is_sent_again(clocks: Clocks) -> None:
    """And told from the network thread, which must not wait."""
    asked: queue.SimpleQueue[Probe] = queue.SimpleQueue()
    with MemoryBus() as bus:
        bus.subscribe(PROBES.filter(worker="w"), 0, lambda delivery: asked.put(unpack_probe(delivery.payload)))
        with probing(bus, clocks, ("w", "s9")) as prober:
            sent = [asked.get(timeout=WAIT_S).sent_ns for _ in range(16)]
            prober.reconnected()
            again = [asked.get(timeout=WAIT_S).sent_ns for _ in range(16)]
    for burst in (sent, again):
        gaps_ns = [later - earlier for earlier, later in pairwise(burst)]
        assert 0 < min(gaps_ns) < 400 * MS, "no pace but a burst's is so quick, even once"


def test_a_flood_of_echoes_stays_bounded(clocks: Clocks) -> None:
    """And what it costs is counted."""
    with MemoryBus() as bus:
        prober = MqttClockProber(bus, vehicle="car", session="s1", online=list)
        bus.subscribe(ECHOES.filter(vehicle="car"), 0, lambda delivery: prober._returned(clocks, delivery))
        done = threading.Event()
        for _ in range(1000):
            bus.publish(ECHOES.of(vehicle="car", worker="w"), random.randbytes(50), qos=0)
        bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)
    assert prober._prober._echoes.qsize() == 256
    assert clocks.ignored == {"too_many": 744}


def test_an_echo_too_large_to_be_one_is_not_held(clocks: Clocks) -> None:
    """A queue full of the largest messages that a broker takes would be all the memory there is."""
    topic = ECHOES.of(vehicle="car", worker="w")
    with MemoryBus() as bus:
        prober = MqttClockProber(bus, vehicle="car", session="s1", online=list)
        prober._returned(clocks, Delivery(topic, bytes(513), received_ns=1))
        prober._returned(clocks, Delivery(topic, bytes(512), received_ns=1))
    assert prober._prober._echoes.qsize() == 1
    assert clocks.ignored == {"unreadable": 1}


def test_the_thread_leaves_its_topic_behind(clocks: Clocks) -> None:
    """A bus outlives a run in the tests of today and the fleets of tomorrow."""
    with MemoryBus() as bus:
        with probing(bus, clocks):
            pass
        assert not bus._subscriptions


def test_an_echo_by_a_topic_that_names_no_worker_is_counted(clocks: Clocks) -> None:
    """A subscription's wildcard takes in what no name may be."""
    with MemoryBus() as bus:
        prober = MqttClockProber(bus, vehicle="car", session="s1", online=list)
        prober._returned(clocks, Delivery("skylane/v1/echoes/car/a b", b"", received_ns=1))
    assert not prober._prober._echoes.qsize()
    assert clocks.ignored == {"topic": 1}
