"""The bus over real brokers: Mosquitto, and the embedded one that speaks MQTT 3.1.1 only."""

import base64
import hashlib
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from shared.broker.broker import Broker
from shared.mqtt.bus import Ack, Delivery, Properties, Will
from shared.mqtt.first_connect import BrokerRefusedError, BrokerUnreachableError
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import WatchedClient
from shared.mqtt.settings import MqttSettings
from shared.network.address import Address, Certificates

WAIT_S = 60.0


class Inbox:
    """What came in, to be waited for."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self) -> Delivery:
        """The next message; fails where none comes."""
        return self._queue.get(timeout=WAIT_S)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own on the broker that all tests share."""
    return f"tests/{uuid4().hex}"


def _bus(url: str, **options: object) -> MqttBus:
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}", **options)  # type: ignore[arg-type]  # Any of its options.


def test_a_message_arrives_with_all_that_mqtt_5_says_beside_it(mosquitto_url: str, topic: str) -> None:
    """A message too broken to read is answered by its correlation data alone."""
    inbox = Inbox()
    sent = Properties("application/x", f"{topic}/back", b"\x00id", 60)
    with _bus(mosquitto_url) as bus:
        assert bus.supports_shared_subscriptions
        bus.subscribe(f"{topic}/+", 1, inbox.put)
        bus.publish(f"{topic}/a", b"\x00\xff" * 500_000, qos=1, properties=sent)
        received = inbox.next()
    assert (received.topic, received.payload) == (f"{topic}/a", b"\x00\xff" * 500_000)
    assert received.properties.content_type == sent.content_type
    assert received.properties.response_topic == sent.response_topic
    assert received.properties.correlation == sent.correlation
    assert received.properties.expiry_s is not None


def test_an_acknowledgement_tells_whether_anyone_listened(mosquitto_url: str, topic: str) -> None:
    """So a frame that nobody takes is closed at once and not after half a minute."""
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _bus(mosquitto_url) as bus:
        bus.publish(topic, b"x", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S) == Ack(accepted=True, no_subscriber=True)
        inbox = Inbox()
        bus.subscribe(topic, 1, inbox.put)
        bus.publish(topic, b"x", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S) == Ack(accepted=True, no_subscriber=False)
        inbox.next()


def test_every_one_of_many_publications_is_acknowledged_once(mosquitto_url: str, topic: str) -> None:
    """An acknowledgement may overtake the call it belongs to; none must be lost or given to another."""
    acks: queue.SimpleQueue[int] = queue.SimpleQueue()
    with _bus(mosquitto_url) as bus:
        bus.subscribe(topic, 1, lambda _: None)

        def publish(first: int) -> None:
            for number in range(first, first + 100):
                bus.publish(topic, b"x", qos=1, acknowledged=lambda _, number=number: acks.put(number))  # type: ignore[misc]  # mypy infers no default.

        threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        numbers = sorted(acks.get(timeout=WAIT_S) for _ in range(300))
        for thread in threads:
            thread.join(WAIT_S)
    assert numbers == list(range(300))


def test_what_was_published_before_the_close_has_reached_the_broker(mosquitto_url: str, topic: str) -> None:
    """A worker that drains must not take its last masks with it."""
    inbox = Inbox()
    with _bus(mosquitto_url) as reader:
        reader.subscribe(topic, 1, inbox.put)
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        reader.publish(topic, b"ready", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S).accepted
        with _bus(mosquitto_url) as bus:
            for number in range(200):
                bus.publish(topic, number.to_bytes(2, "big") * 5000, qos=1)
        received = [inbox.next().payload for _ in range(201)]
    assert [int.from_bytes(payload[:2], "big") for payload in received[1:]] == list(range(200))


def test_nagle_is_off_on_every_connection(mosquitto_url: str) -> None:
    """At QoS 1 it is the difference between 88 ms and 0.6 ms."""
    with _bus(mosquitto_url) as bus:
        sock: Any = bus._client.socket()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_handler_that_raises_costs_one_message(
    mosquitto_url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """paho's thread would die with it and still call itself connected."""
    faults: list[BaseException] = []
    inbox = Inbox()

    def handler(delivery: Delivery) -> None:
        if delivery.payload == b"bad":
            raise ValueError("bug")
        inbox.put(delivery)

    with _bus(mosquitto_url, on_fault=faults.append) as bus:
        bus.subscribe(topic, 1, handler)
        bus.publish(topic, b"bad", qos=1)
        bus.publish(topic, b"good", qos=1)
        assert inbox.next().payload == b"good"
        assert (bus.handler_errors, faults) == (1, [])
    assert "ValueError: bug" in caplog.text


def test_a_broker_killed_and_started_again_finds_its_clients(mosquitto_broker: Broker, topic: str) -> None:
    """AckHandler or not, nothing of it is on a disk: subscriptions must come again, and what was said meanwhile."""
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    inbox = Inbox()
    port = mosquitto_broker.listener.port
    with _bus(mosquitto_broker.url, on_connected=lambda: connected.put(None)) as bus:
        connected.get(timeout=WAIT_S)
        bus.subscribe(topic, 1, inbox.put)
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        bus.publish(topic, b"before", qos=1, acknowledged=acks.put)
        assert inbox.next().payload == b"before"
        assert acks.get(timeout=WAIT_S).accepted  # Otherwise it comes once more.
        os.kill(mosquitto_broker.pid, signal.SIGKILL)
        mosquitto_broker.stop()
        bus.publish(topic, b"meanwhile", qos=1)
        with Broker.start(port=port, kind="mosquitto"):
            connected.get(timeout=WAIT_S)
            assert inbox.next().payload == b"meanwhile"
            assert bus.is_connected
            assert bus.reconnects == 1


def test_a_node_that_goes_without_a_word_leaves_its_will(mosquitto_url: str, topic: str) -> None:
    """A vehicle learns so that its worker was killed."""
    inbox = Inbox()
    with _bus(mosquitto_url) as reader:
        reader.subscribe(topic, 1, inbox.put)
        reader.publish(topic, b"ready", qos=1)
        assert inbox.next().payload == b"ready"
        bus = _bus(mosquitto_url, will=Will(topic, b"gone"))
        bus.publish(topic, b"here", qos=1)
        assert inbox.next().payload == b"here"
        sock: Any = bus._client.socket()
        sock.shutdown(socket.SHUT_RDWR)
        assert inbox.next().payload == b"gone"
        bus.close()


def _password_file(folder: Path) -> Path:
    """Mosquitto's own format: PBKDF2 of SHA-512."""
    salt = b"skylane-salt"
    digest = hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)
    path = folder / "passwords"
    path.write_text(f"car:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n")
    return path


@contextmanager
def _broker(folder: Path, *lines: str, port: int = 0) -> Iterator[Broker]:
    """Mosquitto with a configuration of the test's own, on a free port or a given one."""
    with socket.create_server(("127.0.0.1", port)) as probe:
        port = probe.getsockname()[1]
    config = folder / "mosquitto.conf"
    config.write_text("\n".join((f"listener {port} 127.0.0.1", "user root", *lines, "")))
    with Broker.start(config=config) as broker:
        yield broker


@pytest.mark.mosquitto
def test_a_wrong_password_is_told_at_once_with_what_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again would not help, and the password must not be printed."""
    with _broker(tmp_path, "allow_anonymous false", f"password_file {_password_file(tmp_path)}") as broker:
        url = f"mqtt://car@127.0.0.1:{broker.listener.port}"
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "right")
        _bus(url).close()
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "wrong-secret")
        with pytest.raises(
            BrokerRefusedError, match=r"refuses test-.*: check the user .*SKYLANE_BROKER_PASSWORD"
        ) as caught:
            _bus(url)
        assert "wrong-secret" not in str(caught.value)
        with pytest.raises(BrokerRefusedError):
            _bus(broker.url)


@pytest.mark.mosquitto
def test_a_broker_that_takes_us_no_more_is_told_with_its_words(tmp_path: Path) -> None:
    """A password that was changed under a node that runs looks like a broker that is gone."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with _broker(tmp_path, "allow_anonymous true") as broker:
        bus = _bus(broker.url, times=MqttSettings(away_s=0.0), on_waiting=told.put)
    with bus, _broker(tmp_path, "allow_anonymous false", port=broker.listener.port):
        bus._client.cut()
        said = [told.get(timeout=WAIT_S)]
        while len(said) < 10 and "Not authorized" not in said[-1]:
            bus._watchdog._is_away_told = False  # It was told once that nobody was there: between the two.
            said.append(told.get(timeout=WAIT_S))
    assert "does not take us any more: Not authorized" in said[-1]


@pytest.mark.mosquitto
def test_a_broker_that_is_away_for_a_moment_leaves_two_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An outage of seconds explains lost frames afterwards; the end of the node itself is no loss."""
    caplog.set_level(logging.INFO, "skylane.mqtt")
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    with _broker(tmp_path, "allow_anonymous true") as broker:
        bus = _bus(broker.url, on_connected=lambda: connected.put(None))
        connected.get(timeout=WAIT_S)
    with _broker(tmp_path, "allow_anonymous true", port=broker.listener.port), bus:
        connected.get(timeout=WAIT_S)
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert [line["event"] for line in lines] == ["connected to broker", "connection lost", "connection regained"]
    assert lines[1]["reason"]
    assert lines[2]["after_s"] >= 0
    assert all(line["broker"] == broker.url for line in lines)


@pytest.mark.mosquitto
def test_the_largest_payload_is_the_brokers(tmp_path: Path) -> None:
    """A packet over its limit makes QoS 1 reconnect for ever: it must be refused before."""
    with _broker(tmp_path, "allow_anonymous true", "max_packet_size 100000") as broker, _bus(broker.url) as bus:
        assert bus.max_payload_bytes == 100000 - 2048
        inbox = Inbox()
        topic = "t" * 500
        bus.subscribe(topic, 1, inbox.put)
        properties = Properties("c" * 60, "r" * 500, b"i" * 250, 60)
        bus.publish(topic, bytes(bus.max_payload_bytes), qos=1, properties=properties)
        assert len(inbox.next().payload) == bus.max_payload_bytes
        assert bus.reconnects == 0


def test_the_embedded_broker_is_spoken_to_in_mqtt_3(embedded_url: str, topic: str) -> None:
    """Where no Mosquitto can be installed all of it must still work."""
    inbox = Inbox()
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _bus(embedded_url, will=Will(topic, b"gone")) as bus:  # A will is what it cannot read in MQTT 5.
        assert not bus.supports_shared_subscriptions
        bus.publish(f"{topic}/kept", b"kept", qos=1, retained=True, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S) == Ack(accepted=True, no_subscriber=False)
        bus.subscribe(f"{topic}/+", 1, inbox.put)
        assert inbox.next().payload == b"kept"
        bus.publish(f"{topic}/a", b"x" * 300_000, qos=1, properties=Properties("content", "back", b"id", 5))
        received = inbox.next()
        assert (received.payload, received.properties) == (b"x" * 300_000, Properties())


def test_no_broker_is_told_after_the_timeout_with_how_to_start_one() -> None:
    """And meanwhile, why there is none yet."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    told: list[str] = []
    with pytest.raises(
        BrokerUnreachableError, match=rf"no broker at mqtt://127.0.0.1:{port} after 0.3 s .*skylane broker"
    ):
        _bus(f"mqtt://127.0.0.1:{port}", connect_timeout_s=0.3, on_waiting=told.append)
    assert "trying again" in told[0]


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something on a port that is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                serve(connection)

        thread = threading.Thread(target=accept, name="no-broker", daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (lambda _: None, "never answered"),
        (lambda connection: connection.close(), "hung up without an answer"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "after 0.6 s"),
        (lambda connection: connection.sendall(b"\x20\xff\xff\xff\xff"), "after 0.6 s"),
    ],
    ids=["silent", "hangs up", "a web server", "nonsense"],
)
def test_something_else_on_the_port_is_no_broker(serve: Callable[[socket.socket], None], reason: str) -> None:
    """A wrong port is a common mistake; it must end in a line and not hang."""
    with _server(serve) as port, pytest.raises(BrokerUnreachableError, match=reason):
        _bus(f"mqtt://127.0.0.1:{port}", connect_timeout_s=0.6)


def test_a_broker_that_is_slow_to_answer_is_spoken_to_in_mqtt_5(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that met a machine at its busiest would else take every frame that its neighbours take, till it ends."""
    opened = WatchedClient.open

    def go_on_with_the_second_try(client: WatchedClient, host: str, port: int) -> None:
        if client.protocol is MQTTProtocolVersion.MQTTv311:
            os.kill(mosquitto_broker.pid, signal.SIGCONT)
        opened(client, host, port)

    monkeypatch.setattr(WatchedClient, "open", go_on_with_the_second_try)
    os.kill(mosquitto_broker.pid, signal.SIGSTOP)
    with _bus(mosquitto_broker.url, times=MqttSettings(answer_s=1.0)) as bus:
        assert bus.supports_shared_subscriptions
        assert bus.reconnects == 0


def test_no_network_thread_is_left_behind(mosquitto_url: str, embedded_url: str) -> None:
    """Tried protocols and lost connections included."""
    for url in (mosquitto_url, embedded_url):
        _bus(url).close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paho-mqtt-client-test-")]


def test_certificates_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """One line and not a traceback."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(Exception, match=r"certificates for mqtts://127.0.0.1:8883 cannot be used"):
        _bus("mqtts://127.0.0.1", certificates=Certificates(str(tmp_path / "ca.pem")), connect_timeout_s=0.3)


def test_the_trace_of_a_frame_travels_beside_it(mosquitto_url: str) -> None:
    """A tracer follows a frame by it through broker and worker, without opening the payload."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    heard: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    with MqttBus(Address.parse(mosquitto_url), "tracer") as bus:
        bus.subscribe("skylane/test/trace", 1, heard.put)
        bus.publish("skylane/test/trace", b"", qos=1, properties=Properties(traceparent=trace))
        assert heard.get(timeout=WAIT_S).properties.traceparent == trace


@pytest.mark.mosquitto
def test_what_a_broker_refuses_for_its_size_is_refused_once_and_not_sent_for_ever(tmp_path: Path) -> None:
    """A broker with a `message_size_limit` tells it to nobody, and refuses with a code that paho cannot read.

    It would then connect, send the message and be disconnected again, for as long as the vehicle ran.
    """
    acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
    with _broker(tmp_path, "allow_anonymous true", "message_size_limit 1000") as broker, _bus(broker.url) as bus:
        for payload in (bytes(2000), b"x"):
            bus.publish("test/any", payload, qos=1, acknowledged=acks.put)
        assert [acks.get(timeout=WAIT_S).accepted for _ in range(2)] == [False, True]
        assert bus.reconnects == 0
