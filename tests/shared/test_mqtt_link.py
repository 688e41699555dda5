"""The bus over links that go silent, brokers that stand still and threads that die: what it notices, and how soon."""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from bench.link.link import Link, LinkSpec
from shared import clock
from shared.broker.broker import Broker
from shared.mqtt.bus import LINK_JAMMED, Ack, Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.settings import MqttSettings
from shared.mqtt.watchdog import NetworkThreadError
from shared.network.address import Address

WAIT_S = 60.0
pytestmark = pytest.mark.mosquitto


def _bus(url: str, **options: object) -> MqttBus:
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}", **options)  # type: ignore[arg-type]  # Any of its options.


@contextmanager
def _stopped(broker: Broker) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def _linked(broker: Broker, **options: object) -> Iterator[tuple[Link, MqttBus, Callable[[], None]]]:
    """A bus over a link, and what waits until it has connected once more."""
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    with (
        Link(LinkSpec(), broker.listener.host, broker.listener.port) as link,
        _bus(link.url, on_connected=lambda: connected.put(None), **options) as bus,
    ):
        connected.get(timeout=WAIT_S)
        yield link, bus, lambda: connected.get(timeout=WAIT_S)


@pytest.mark.parametrize("is_idle", [False, True], ids=["with a frame under way", "idle"])
def test_a_half_open_link_is_noticed_and_what_was_sent_arrives_over_the_next(
    mosquitto_broker: Broker, *, is_idle: bool
) -> None:
    """A radio that went dead closes nothing: TCP would go on for a quarter of an hour, and every frame be lost."""
    times = MqttSettings(keepalive_s=2) if is_idle else MqttSettings()
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    with _linked(mosquitto_broker, link_timeout_s=1.0, times=times, on_waiting=lost.put) as (
        link,
        bus,
        wait_for_connection,
    ):
        bus.subscribe("test/half-open", 1, arrived.put)
        bus.publish("test/half-open", b"before", qos=1)
        assert arrived.get(timeout=WAIT_S).payload == b"before"
        link.set(LinkSpec(half_open_after_s=0))
        if not is_idle:
            bus.publish("test/half-open", b"meanwhile", qos=1)
        assert "has not been heard" in lost.get(timeout=WAIT_S)
        link.set(LinkSpec())
        wait_for_connection()
        if is_idle:
            bus.publish("test/half-open", b"meanwhile", qos=1)
        while arrived.get(timeout=WAIT_S).payload != b"meanwhile":
            pass  # "before" may come again: its acknowledgement may have been swallowed.
        assert min(bus.link_losses, bus.reconnects) >= 1  # A busy machine may be silent for as long once more.


def test_a_link_that_crawls_is_left_alone(mosquitto_broker: Broker) -> None:
    """paho's ping waits behind the frames; whoever takes that for silence sends them from zero for ever."""
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _linked(mosquitto_broker, link_timeout_s=2.0) as (link, bus, _):
        link.set(LinkSpec(bandwidth_up_mbps=8))
        for _ in range(8):  # 2.4 s together, and 0.3 s each: a busy machine has the rest.
            bus.publish("test/crawl", bytes(300_000), qos=1, acknowledged=acks.put)
        for _ in range(8):
            assert acks.get(timeout=WAIT_S).accepted
        assert (bus.link_losses, bus.reconnects) == (0, 0)


def test_a_broker_that_stands_still_takes_a_bounded_number_of_messages(mosquitto_broker: Broker) -> None:
    """Frames fall due all the time, and whoever gave one up sends the next: the client would keep them all."""
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _bus(mosquitto_broker.url, max_inflight=4) as bus:
        with _stopped(mosquitto_broker):
            for _ in range(10):
                bus.publish("test/jam", bytes(1000), qos=1, acknowledged=acks.put)
            refused = [acks.get_nowait() for _ in range(6)]
            assert acks.empty()
        taken = [acks.get(timeout=WAIT_S) for _ in range(4)]
    assert {ack.reason for ack in refused} == {LINK_JAMMED}
    assert all(ack.accepted for ack in taken)
    assert bus.refused == 6


def test_nothing_grows_at_qos_0_while_a_broker_stands_still(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody acknowledges these: only what is still to be written tells that they go nowhere."""
    monkeypatch.setattr("shared.mqtt.inflight.MAX_INFLIGHT_BYTES", 20_000_000)
    with _bus(mosquitto_broker.url) as bus, _stopped(mosquitto_broker):
        for _ in range(100):
            bus.publish("test/jam", bytes(1_000_000), qos=0)
        assert bus.refused > 50


def test_a_bus_is_closed_soon_though_nobody_listens(mosquitto_broker: Broker) -> None:
    """Ctrl-C beside a broker that stands still must not take half a minute."""
    bus = _bus(mosquitto_broker.url)
    with _stopped(mosquitto_broker):
        bus.publish("test/close", bytes(8_000_000), qos=1)
        bus.publish("test/close", bytes(8_000_000), qos=1)
        ended = threading.Thread(target=bus.close)
        ended.start()
        ended.join(25)
        assert not ended.is_alive()


def test_a_connect_that_is_never_answered_is_given_up(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system of a broker that stands still takes connections for it; each would last until TCP gives up."""
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    cuts: queue.SimpleQueue[None] = queue.SimpleQueue()
    times = MqttSettings(accept_s=0.5)
    with _bus(mosquitto_broker.url, times=times, on_connected=lambda: connected.put(None)) as bus:
        connected.get(timeout=WAIT_S)
        cut = bus._client.cut
        with _stopped(mosquitto_broker):
            cut()
            monkeypatch.setattr(bus._client, "cut", lambda: cuts.put(cut()))
            for _ in range(2):
                cuts.get(timeout=WAIT_S)
        connected.get(timeout=WAIT_S)
        assert bus.link_losses == 0


def test_every_wait_before_another_try_is_drawn_anew(mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """paho waits one second, two, four, as all others that lost the broker with it."""
    held: queue.SimpleQueue[float] = queue.SimpleQueue()

    class Drawn:
        """Waits so short that only these make the test end soon."""

        def wait_s(self, held_s: float) -> float:
            held.put(held_s)
            return 0.01

    monkeypatch.setattr("shared.mqtt.paho_client.ExponentialBackoff", Drawn)
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    with _bus(mosquitto_broker.url, on_connected=lambda: connected.put(None)) as bus:
        connected.get(timeout=WAIT_S)
        bus._client.cut()
        connected.get(timeout=WAIT_S)
        assert held.get(timeout=WAIT_S) > 0
        mosquitto_broker.stop()
        assert held.get(timeout=WAIT_S) > 0
        assert [held.get(timeout=WAIT_S) for _ in range(20)] == [0.0] * 20  # Of connections that never stood.
        assert bus._client._reconnect_max_delay == 0.01


def test_a_network_thread_that_died_is_told(mosquitto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """paho would call itself connected and take every frame, and send none."""
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    hooked = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: hooked.set())
    with _bus(mosquitto_url, on_fault=faults.put) as bus:

        def bug(*_: object) -> None:
            raise KeyError("a bug of paho's")

        bus._client.on_publish = bug
        bus.publish("test/dead", b"", qos=1)
        error = faults.get(timeout=WAIT_S)
        assert hooked.wait(WAIT_S)
    assert isinstance(error, NetworkThreadError)
    assert "has died" in str(error)


def test_a_callback_that_keeps_the_network_thread_is_told_with_where_it_is(mosquitto_url: str) -> None:
    """Nothing is received meanwhile, and after one and a half keepalives the broker gives the node up for dead."""
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    goes_on = threading.Event()

    def lingering(_: Delivery) -> None:
        goes_on.wait(WAIT_S)

    with _bus(mosquitto_url, link_timeout_s=2.5, times=MqttSettings(callback_s=2.6), on_fault=faults.put) as bus:
        topic = f"test/{uuid4().hex}"
        bus.subscribe(topic, 1, lingering)
        bus.publish(topic, b"", qos=1)
        error = faults.get(timeout=WAIT_S)
        goes_on.set()
        assert bus.link_losses == 0
    assert "lingering" in str(error)


def test_a_process_that_stood_still_blames_neither_its_link_nor_its_thread(mosquitto_url: str) -> None:
    """SIGSTOP, or a lid that was closed: nothing was heard, and nothing came round, because nothing ran."""
    faults: list[BaseException] = []
    with _bus(mosquitto_url, on_fault=faults.append) as bus:
        bus._watchdog.end()
        bus._watchdog._look(clock.now_ns() + 60_000_000_000)
        assert (faults, bus.link_losses) == ([], 0)


def test_the_bus_says_when_it_last_heard_anything(mosquitto_broker: Broker) -> None:
    """Workers that say nothing while the broker is heard stand still; where it is not, nobody knows."""
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _bus(mosquitto_broker.url) as bus:
        before_ns = bus.last_received_ns
        with _stopped(mosquitto_broker):
            bus.publish("test/heard", b"", qos=1, acknowledged=acks.put)
            assert bus.last_received_ns == before_ns
        acks.get(timeout=WAIT_S)
        assert bus.last_received_ns > before_ns


def test_what_the_broker_had_kept_is_marked(mosquitto_url: str) -> None:
    """It may be of a node that is gone; who takes it for a word of now takes a ghost for a living one."""
    topic = f"test/{uuid4().hex}"
    arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _bus(mosquitto_url) as bus:
        bus.publish(topic, b"kept", qos=1, retained=True, acknowledged=acks.put)
        acks.get(timeout=WAIT_S)
        bus.subscribe(topic, 1, arrived.put)
        assert arrived.get(timeout=WAIT_S).retained
        bus.publish(topic, b"", qos=1, retained=True)
        assert not arrived.get(timeout=WAIT_S).retained


def test_the_largest_payload_is_what_the_narrowest_link_carries(mosquitto_url: str) -> None:
    """What takes longer than a keepalive never arrives; so much is known before the first frame."""
    with _bus(mosquitto_url, min_bandwidth_mbps=1.0) as bus:
        assert bus.max_payload_bytes == 1_500_000
        assert bus.payload_limit_reason == "--min-bandwidth 1 allows 1500000"
    with _bus(mosquitto_url) as bus:
        assert bus.payload_limit_reason == f"the broker takes {bus.max_payload_bytes}"
