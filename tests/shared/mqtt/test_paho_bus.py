"""The bus over real brokers: Mosquitto, and the embedded one, which speaks only MQTT 3.1.1."""

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

from ops.broker.broker import Broker
from shared.errors import SkylaneError
from shared.mqtt.bus import Ack, Delivery, Properties, Will
from shared.mqtt.paho_client import MonitoredClient, MqttSettings
from shared.network.address import Certificates
from tests.support.mqtt_bus import (
    WAIT_S,
    Acks,
    Events,
    Inbox,
    connect,
    free_port,
    mosquitto_with,
    subscribed_inbox,
    suspended,
)


@pytest.fixture
def topic() -> str:
    """A unique topic, as all tests share one broker."""
    return f"tests/{uuid4().hex}"


def test_a_message_arrives_with_its_mqtt_5_properties(mosquitto_url: str, topic: str) -> None:
    """Replies find their frame by the correlation data, and tracers by the trace context."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = Properties("application/x", f"{topic}/back", b"\x00id", 60, trace)
    inbox = Inbox()
    with connect(mosquitto_url) as bus:
        assert bus.supports_shared_subscriptions
        bus.subscribe(f"{topic}/+", 1, inbox.put)
        bus.publish(f"{topic}/a", b"\x00\xff" * 500_000, qos=1, properties=sent)
        received = inbox.next()
        was_connected = bus.is_connected
    assert (was_connected, bus.is_connected) == (True, False)
    assert (received.topic, received.payload) == (f"{topic}/a", b"\x00\xff" * 500_000)
    assert received.properties.content_type == sent.content_type
    assert received.properties.response_topic == sent.response_topic
    assert received.properties.correlation == sent.correlation
    assert received.properties.expiry_s is not None
    assert received.properties.traceparent == trace


def test_an_acknowledgement_reports_missing_subscribers(mosquitto_url: str, topic: str) -> None:
    """A frame without a worker can be closed at once instead of after half a minute."""
    acks = Acks()
    with connect(mosquitto_url) as bus:
        bus.publish(topic, b"x", qos=1, acknowledged=acks.put)
        assert acks.next() == Ack(accepted=True, no_subscriber=True)
        inbox = Inbox()
        bus.subscribe(topic, 1, inbox.put)
        bus.publish(topic, b"x", qos=1, acknowledged=acks.put)
        assert acks.next() == Ack(accepted=True, no_subscriber=False)
        inbox.next()


def test_each_publication_gets_its_own_acknowledgement_once(mosquitto_url: str, topic: str) -> None:
    """Several threads publish, and an acknowledgement may arrive before `publish` returns."""
    acks: queue.SimpleQueue[int] = queue.SimpleQueue()
    with connect(mosquitto_url) as bus:
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


def test_close_sends_what_was_published(mosquitto_url: str, topic: str) -> None:
    """A draining worker still delivers its last masks."""
    with connect(mosquitto_url) as reader:
        inbox = subscribed_inbox(reader, topic)
        with connect(mosquitto_url) as bus:
            for number in range(200):
                bus.publish(topic, number.to_bytes(2, "big") * 5000, qos=1)
        received = [inbox.next().payload for _ in range(200)]
    assert [int.from_bytes(payload[:2], "big") for payload in received] == list(range(200))


def test_nagles_algorithm_is_off(mosquitto_url: str) -> None:
    """At QoS 1 a message takes 88 ms with it and 0.6 ms without."""
    with connect(mosquitto_url) as bus:
        sock: Any = bus.client.socket()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_an_exception_in_a_handler_loses_one_message(
    mosquitto_url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would otherwise end paho's thread, while paho still reports a connection."""
    faults: list[BaseException] = []
    inbox = Inbox()

    def handler(delivery: Delivery) -> None:
        if delivery.payload == b"bad":
            raise ValueError("bug")
        inbox.put(delivery)

    with connect(mosquitto_url, on_fault=faults.append) as bus:
        bus.subscribe(topic, 1, handler)
        bus.publish(topic, b"bad", qos=1)
        bus.publish(topic, b"good", qos=1)
        assert inbox.next().payload == b"good"
        assert (bus.handler_errors, faults) == (1, [])
    assert "ValueError: bug" in caplog.text


def test_clients_reconnect_to_a_broker_that_was_killed(mosquitto_broker: Broker, topic: str) -> None:
    """The new broker knows nothing: subscriptions are sent again, and so is what was published meanwhile."""
    connected = Events()
    port = mosquitto_broker.listener.port
    with connect(mosquitto_broker.url, on_connected=connected.put) as bus:
        connected.wait()
        inbox = subscribed_inbox(bus, topic)
        os.kill(mosquitto_broker.pid, signal.SIGKILL)
        mosquitto_broker.stop()
        bus.publish(topic, b"meanwhile", qos=1)
        with Broker.start(port=port, kind="mosquitto"):
            connected.wait()
            assert inbox.next().payload == b"meanwhile"
            assert bus.is_connected
            assert bus.reconnects == 1


def test_the_will_is_published_when_a_connection_breaks(mosquitto_url: str, topic: str) -> None:
    """A vehicle learns from it that its worker was killed."""
    with connect(mosquitto_url) as reader:
        inbox = subscribed_inbox(reader, topic)
        bus = connect(mosquitto_url, will=Will(topic, b"gone"))
        bus.publish(topic, b"here", qos=1)
        assert inbox.next().payload == b"here"
        sock: Any = bus.client.socket()
        sock.shutdown(socket.SHUT_RDWR)
        assert inbox.next().payload == b"gone"
        bus.close()


def _password_file(folder: Path) -> Path:
    """Writes a password file in Mosquitto's format, PBKDF2 with SHA-512."""
    salt = b"skylane-salt"
    digest = hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)
    path = folder / "passwords"
    path.write_text(f"car:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n")
    return path


@pytest.mark.mosquitto
def test_a_wrong_password_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retrying would not help. The message says what to check and does not contain the password."""
    with mosquitto_with(tmp_path, "allow_anonymous false", f"password_file {_password_file(tmp_path)}") as broker:
        url = f"mqtt://car@127.0.0.1:{broker.listener.port}"
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "right")
        connect(url).close()
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "wrong-secret")
        with pytest.raises(SkylaneError, match=r"refuses test-.*: check the user .*SKYLANE_BROKER_PASSWORD") as caught:
            connect(url)
        assert "wrong-secret" not in str(caught.value)
        with pytest.raises(SkylaneError, match="refuses"):
            connect(broker.url)


@pytest.mark.mosquitto
def test_a_refusal_after_a_reconnect_is_reported_with_its_reason(tmp_path: Path) -> None:
    """A password that was changed while a node runs must not look like a missing broker."""
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    with mosquitto_with(tmp_path, "allow_anonymous true") as broker:
        bus = connect(broker.url, MqttSettings(offline_notice_s=4.0), on_waiting=messages.put)
    with bus, mosquitto_with(tmp_path, "allow_anonymous false", port=broker.listener.port):
        assert "does not accept this node any more: Not authorized" in messages.get(timeout=WAIT_S)


@pytest.mark.mosquitto
def test_an_outage_is_logged_with_its_begin_and_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lines explain lost frames afterwards; closing the bus itself is not logged as a loss."""
    caplog.set_level(logging.INFO, "skylane.mqtt")
    connected = Events()
    with mosquitto_with(tmp_path, "allow_anonymous true") as broker:
        bus = connect(broker.url, on_connected=connected.put)
        connected.wait()
    with mosquitto_with(tmp_path, "allow_anonymous true", port=broker.listener.port), bus:
        connected.wait()
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert [line["event"] for line in lines] == ["connected to broker", "connection lost", "connection regained"]
    assert lines[1]["reason"]
    assert lines[2]["after_s"] >= 0
    assert all(line["broker"] == broker.url for line in lines)


@pytest.mark.mosquitto
def test_the_largest_payload_follows_the_brokers_packet_limit(tmp_path: Path) -> None:
    """A QoS 1 packet above the limit would be sent and disconnected again and again."""
    with (
        mosquitto_with(tmp_path, "allow_anonymous true", "max_packet_size 100000") as broker,
        connect(broker.url) as bus,
    ):
        assert bus.max_payload_bytes == 100000 - 2048
        inbox = Inbox()
        topic = "t" * 500
        bus.subscribe(topic, 1, inbox.put)
        properties = Properties("c" * 60, "r" * 500, b"i" * 250, 60)
        bus.publish(topic, bytes(bus.max_payload_bytes), qos=1, properties=properties)
        assert len(inbox.next().payload) == bus.max_payload_bytes
        assert bus.reconnects == 0


@pytest.mark.mosquitto
def test_a_message_above_the_brokers_message_limit_is_refused_once(tmp_path: Path) -> None:
    """Mosquitto does not announce its `message_size_limit`; paho would reconnect and send the message again."""
    acks = Acks()
    with (
        mosquitto_with(tmp_path, "allow_anonymous true", "message_size_limit 1000") as broker,
        connect(broker.url) as bus,
    ):
        for payload in (bytes(2000), b"x"):
            bus.publish("test/any", payload, qos=1, acknowledged=acks.put)
        assert [acks.next().accepted for _ in range(2)] == [False, True]
        assert bus.reconnects == 0


def test_a_retained_message_is_marked(mosquitto_url: str, topic: str) -> None:
    """Its sender may be gone, so a receiver must be able to tell it from a current message."""
    inbox, acks = Inbox(), Acks()
    with connect(mosquitto_url) as bus:
        bus.publish(topic, b"kept", qos=1, retained=True, acknowledged=acks.put)
        acks.next()
        bus.subscribe(topic, 1, inbox.put)
        assert inbox.next().retained
        bus.publish(topic, b"", qos=1, retained=True)
        assert not inbox.next().retained


def test_the_largest_payload_follows_the_slowest_link(mosquitto_url: str) -> None:
    """A message that takes longer than a keepalive never arrives."""
    with connect(mosquitto_url, MqttSettings(min_bandwidth_mbps=1.0)) as bus:
        assert bus.max_payload_bytes == 1_500_000
        assert bus.payload_limit_reason == "--min-bandwidth 1 allows 1500000"
    with connect(mosquitto_url) as bus:
        assert bus.payload_limit_reason == f"the broker takes {bus.max_payload_bytes}"


def test_the_embedded_broker_is_used_over_mqtt_3_1_1(embedded_url: str, topic: str) -> None:
    """The will matters: amqtt misreads an MQTT 5 CONNECT that has one."""
    inbox, acks = Inbox(), Acks()
    with connect(embedded_url, will=Will(topic, b"gone")) as bus:
        assert not bus.supports_shared_subscriptions
        bus.publish(f"{topic}/kept", b"kept", qos=1, retained=True, acknowledged=acks.put)
        assert acks.next() == Ack(accepted=True, no_subscriber=False)
        bus.subscribe(f"{topic}/+", 1, inbox.put)
        assert inbox.next().payload == b"kept"
        bus.publish(f"{topic}/a", b"x" * 300_000, qos=1, properties=Properties("content", "back", b"id", 5))
        received = inbox.next()
        assert (received.payload, received.properties) == (b"x" * 300_000, Properties())


def test_a_missing_broker_is_reported_after_the_timeout() -> None:
    """The error says how to start one; until then `on_waiting` gives the reason."""
    port = free_port()
    messages: list[str] = []
    with pytest.raises(SkylaneError, match=rf"no broker at mqtt://127.0.0.1:{port} after 0.3 s .*skylane broker"):
        connect(f"mqtt://127.0.0.1:{port}", MqttSettings(connect_timeout_s=0.3), on_waiting=messages.append)
    assert "trying again" in messages[0]


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Runs a server that is not a broker; yields its port."""
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
        (lambda _: None, "sent no reply"),
        (lambda connection: connection.close(), "closed the connection without a reply"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "after 0.6 s"),
        (lambda connection: connection.sendall(b"\x20\xff\xff\xff\xff"), "after 0.6 s"),
    ],
    ids=["silent", "closes", "web server", "malformed packet"],
)
def test_another_server_on_the_port_is_reported(serve: Callable[[socket.socket], None], reason: str) -> None:
    """A wrong port is a common mistake; it gives an error in time."""
    with _server(serve) as port, pytest.raises(SkylaneError, match=reason):
        connect(f"mqtt://127.0.0.1:{port}", MqttSettings(connect_timeout_s=0.6))


def test_mqtt_5_is_tried_again_if_the_broker_was_only_slow(
    mosquitto_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stayed with 3.1.1 would lack shared subscriptions, and process every frame of its peers too."""
    original_open = MonitoredClient.open

    def resume_broker_on_fallback(client: MonitoredClient, host: str, port: int) -> None:
        if client.protocol is MQTTProtocolVersion.MQTTv311:
            os.kill(mosquitto_broker.pid, signal.SIGCONT)
        original_open(client, host, port)

    monkeypatch.setattr(MonitoredClient, "open", resume_broker_on_fallback)
    with suspended(mosquitto_broker), connect(mosquitto_broker.url, MqttSettings(connack_timeout_s=1.0)) as bus:
        assert bus.supports_shared_subscriptions
        assert bus.reconnects == 0


def test_a_closed_bus_leaves_no_network_thread(mosquitto_url: str, embedded_url: str) -> None:
    """This includes the clients of failed attempts."""
    for url in (mosquitto_url, embedded_url):
        connect(url).close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paho-mqtt-client-test-")]


def test_unreadable_certificates_are_reported(tmp_path: Path) -> None:
    """The error names the broker instead of showing a traceback of OpenSSL."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(Exception, match=r"certificates for mqtts://127.0.0.1:8883 cannot be used"):
        connect("mqtts://127.0.0.1", certificates=Certificates(str(tmp_path / "ca.pem")))
