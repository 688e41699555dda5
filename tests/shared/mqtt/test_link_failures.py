"""The bus over dead and slow links, with suspended brokers and with dead or stuck network threads."""

import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from ops.broker.broker import Broker
from ops.link.link import Link
from shared import clock
from shared.mqtt.bus import LINK_JAMMED, Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import MqttSettings
from shared.mqtt.watchdog import NetworkThreadError
from shared.network.link_spec import LinkSpec
from tests.support.mqtt_bus import WAIT_S, Acks, Events, Inbox, connect, suspended

pytestmark = pytest.mark.mosquitto


@contextmanager
def _linked(broker: Broker, settings: MqttSettings, **options: Any) -> Iterator[tuple[Link, MqttBus, Events]]:
    """Connects a bus over a simulated link; yields the events of its later connections too."""
    connected = Events()
    with (
        Link(LinkSpec(), broker.listener.host, broker.listener.port) as link,
        connect(link.url, settings, on_connected=connected.put, **options) as bus,
    ):
        connected.wait()
        yield link, bus, connected


@pytest.mark.parametrize("is_idle", [False, True], ids=["message in flight", "idle"])
def test_a_half_open_link_is_replaced_and_its_messages_are_sent_again(
    mosquitto_broker: Broker, *, is_idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead radio closes no connection; TCP would wait a quarter of an hour and every frame would be lost."""
    settings = MqttSettings(link_timeout_s=1.0, keepalive_s=2) if is_idle else MqttSettings(link_timeout_s=1.0)
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    inbox = Inbox()
    with _linked(mosquitto_broker, settings, on_waiting=messages.put) as (link, bus, connected):
        bus.subscribe("test/half-open", 1, inbox.put)
        bus.publish("test/half-open", b"before", qos=1)
        assert inbox.next().payload == b"before"
        link.set(LinkSpec(half_open_after_s=0))
        if not is_idle:
            bus.publish("test/half-open", b"meanwhile", qos=1)
        silent = re.search(r"has sent nothing for (\d+) s", messages.get(timeout=WAIT_S))
        assert silent
        assert int(silent[1]) >= 1
        link.set(LinkSpec())
        connected.wait()
        if is_idle:
            bus.publish("test/half-open", b"meanwhile", qos=1)
        while inbox.next().payload != b"meanwhile":
            pass  # "before" may come again: its acknowledgement may have been lost.
        assert min(bus.link_losses, bus.reconnects) >= 1  # A busy machine may cause more.
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert (
        next(line for line in lines if line["event"] == "connection lost")["silent_s"] >= 1
    )  # The end of the connection itself is no sign of life.


def test_a_slow_link_is_kept(mosquitto_broker: Broker) -> None:
    """paho's ping waits behind the frames; closing the connection would send them again from the start."""
    acks = Acks()
    with _linked(mosquitto_broker, MqttSettings(link_timeout_s=2.0)) as (link, bus, _):
        link.set(LinkSpec(bandwidth_up_mbps=8))
        for _ in range(8):  # 0.3 s each and 2.4 s together, so the timeout leaves time for a busy machine.
            bus.publish("test/slow", bytes(300_000), qos=1, acknowledged=acks.put)
        for _ in range(8):
            assert acks.next().accepted
        assert (bus.link_losses, bus.reconnects) == (0, 0)


def test_the_messages_for_a_suspended_broker_are_limited(mosquitto_broker: Broker) -> None:
    """Frames fall due all the time, and the client would queue them all."""
    acks = Acks()
    with connect(mosquitto_broker.url, MqttSettings(max_inflight=4)) as bus:
        with suspended(mosquitto_broker):
            for _ in range(10):
                bus.publish("test/jam", bytes(1000), qos=1, acknowledged=acks.put)
            refused = [acks.next() for _ in range(6)]
            assert acks.empty()
        accepted = [acks.next() for _ in range(4)]
    assert {ack.reason for ack in refused} == {LINK_JAMMED}
    assert all(ack.accepted for ack in accepted)
    assert bus.refused == 6


def test_the_qos_0_messages_for_a_suspended_broker_are_limited(mosquitto_broker: Broker) -> None:
    """They have no acknowledgements, so the limit applies to what is not written to the socket yet."""
    settings = MqttSettings(max_inflight_bytes=20_000_000)
    with connect(mosquitto_broker.url, settings) as bus, suspended(mosquitto_broker):
        for _ in range(100):
            bus.publish("test/jam", bytes(1_000_000), qos=0)
        assert bus.refused > 50


def test_close_does_not_wait_for_a_suspended_broker(mosquitto_broker: Broker) -> None:
    """Ctrl-C must end a node soon."""
    bus = connect(mosquitto_broker.url)
    with suspended(mosquitto_broker):
        bus.publish("test/close", bytes(8_000_000), qos=1)
        bus.publish("test/close", bytes(8_000_000), qos=1)
        closing = threading.Thread(target=bus.close)
        closing.start()
        closing.join(25)
        assert not closing.is_alive()


def test_a_connection_without_a_connack_is_given_up(mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system accepts TCP connections for a suspended broker, which would otherwise last until TCP gives up."""
    connected, aborts = Events(), Events()
    with connect(mosquitto_broker.url, MqttSettings(reconnect_timeout_s=0.5), on_connected=connected.put) as bus:
        connected.wait()
        abort = bus.client.abort
        with suspended(mosquitto_broker):
            abort()
            monkeypatch.setattr(bus.client, "abort", lambda: aborts.put(abort()))
            for _ in range(2):
                aborts.wait()
        connected.wait()
        assert bus.link_losses == 0


def test_the_wait_before_each_attempt_comes_from_the_back_off(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paho's own waits (1 s, 2 s, 4 s …) are equal on all nodes that lost a broker together."""
    held: queue.SimpleQueue[float] = queue.SimpleQueue()

    class ShortWaits:
        """Records how long connections lasted; paho's own waits would make the test time out."""

        def wait_s(self, held_s: float) -> float:
            held.put(held_s)
            return 0.01

    monkeypatch.setattr("shared.mqtt.paho_client.ExponentialBackoff", ShortWaits)
    connected = Events()
    with connect(mosquitto_broker.url, on_connected=connected.put) as bus:
        connected.wait()
        bus.client.abort()
        connected.wait()
        assert held.get(timeout=WAIT_S) > 0
        mosquitto_broker.stop()
        assert held.get(timeout=WAIT_S) > 0
        assert [held.get(timeout=WAIT_S) for _ in range(20)] == [0.0] * 20  # Failed attempts.


def test_a_dead_network_thread_is_reported(mosquitto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """paho would still report a connection and accept frames, but send none."""
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    hooked = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: hooked.set())
    with connect(mosquitto_url, on_fault=faults.put) as bus:

        def bug(*_: object) -> None:
            raise KeyError("a bug of paho's")

        bus.client.on_publish = bug
        bus.publish("test/dead", b"", qos=1)
        error = faults.get(timeout=WAIT_S)
        assert hooked.wait(WAIT_S)
    assert isinstance(error, NetworkThreadError)
    assert "has died" in str(error)


def test_a_stuck_callback_is_reported_with_its_stack(mosquitto_url: str) -> None:
    """Nothing is received meanwhile, and the broker disconnects the node after one and a half keepalives."""
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    released = threading.Event()

    def stuck_handler(_: Delivery) -> None:
        released.wait(WAIT_S)

    settings = MqttSettings(link_timeout_s=2.5, callback_timeout_s=2.6)
    with connect(mosquitto_url, settings, on_fault=faults.put) as bus:
        topic = f"test/{uuid4().hex}"
        bus.subscribe(topic, 1, stuck_handler)
        bus.publish(topic, b"", qos=1)
        error = faults.get(timeout=WAIT_S)
        released.set()
        assert bus.link_losses == 0
    assert "stuck_handler" in str(error)


def test_a_suspended_process_reports_neither_its_link_nor_its_thread(mosquitto_url: str) -> None:
    """After SIGSTOP or a closed lid, nothing was received because nothing ran."""
    faults: list[BaseException] = []
    with connect(mosquitto_url, on_fault=faults.append) as bus:
        bus.watchdog.stop()
        bus.watchdog.check(clock.now_ns() + 60_000_000_000)
        assert (faults, bus.link_losses) == ([], 0)


def test_the_time_of_the_last_received_byte_is_known(mosquitto_broker: Broker) -> None:
    """A silent worker is stuck only if the broker itself is not silent."""
    acks = Acks()
    with connect(mosquitto_broker.url) as bus:
        before_ns = bus.last_received_ns
        with suspended(mosquitto_broker):
            bus.publish("test/received", b"", qos=1, acknowledged=acks.put)
            assert bus.last_received_ns == before_ns
        acks.next()
        assert bus.last_received_ns > before_ns
