"""The behaviour of paho that `MonitoredClient` depends on: an incompatible release of paho fails here."""

import queue
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion

from shared.mqtt.packets import PublishPacket
from shared.mqtt.paho_client import LinkMonitor, MonitoredClient, MqttSettings

WAIT_S = 60.0
CONNACK = {MQTTProtocolVersion.MQTTv5: b"\x20\x03\0\0\0", MQTTProtocolVersion.MQTTv311: b"\x20\x02\0\0"}


class Session:
    """A client that is connected to a socket of the test instead of a broker."""

    def __init__(self, protocol: MQTTProtocolVersion) -> None:
        self.received: queue.SimpleQueue[PublishPacket] = queue.SimpleQueue()
        self.monitor = LinkMonitor(15.0, 5.0)
        self.client = MonitoredClient(
            "test",
            protocol,
            self.monitor,
            MqttSettings(),
            received=self.received.put,
            will=None,
            context=None,
            reload_certificates=lambda _: None,
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client.open("127.0.0.1", listener.getsockname()[1])
            self._broker, _ = listener.accept()
        self._broker.settimeout(WAIT_S)
        self.connect_packet = self._broker.recv(1000)
        self.client.loop_start()
        self.send(CONNACK[protocol])

    def send(self, packet: bytes) -> None:
        """Sends a packet to the client."""
        self._broker.sendall(packet)

    def read(self, count: int) -> bytes:
        """Reads bytes that the client sends."""
        return self._broker.recv(count, socket.MSG_WAITALL)

    def close(self) -> None:
        """Closes both ends."""
        self.client.stop()
        self._broker.close()


@contextmanager
def session(protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5) -> Iterator[Session]:
    """Runs a session during the block."""
    opened = Session(protocol)
    try:
        yield opened
    finally:
        opened.close()


def publish_packet(qos: int, payload: bytes, properties: bytes) -> bytes:
    """A PUBLISH packet with topic "t" and, at QoS 1, packet identifier 7."""
    body = b"\0\x01t" + (b"\0\x07" if qos else b"") + properties + payload
    assert len(body) < 128
    return bytes((0x30 | qos << 1, len(body))) + body


@pytest.mark.parametrize("protocol", list(CONNACK), ids=lambda protocol: protocol.name)
def test_publications_are_read_by_our_parser_and_acknowledged(protocol: MQTTProtocolVersion) -> None:
    """The overridden private method of paho and the fields that it reads still exist."""
    assert callable(Client._packet_handle)
    is_5 = protocol is MQTTProtocolVersion.MQTTv5
    with session(protocol) as opened:
        for qos in (0, 1):
            opened.send(publish_packet(qos, b"payload", b"\x05\x02\0\0\0\x09" if is_5 else b""))
            received = opened.received.get(timeout=WAIT_S)
            assert (received.topic, received.qos, bytes(received.payload)) == (b"t", qos, b"payload")
            assert received.properties.expiry_s == (9 if is_5 else None)
        assert opened.read(4) == b"\x40\x02\0\x07", "PUBACK of packet 7"


def test_a_puback_with_a_foreign_reason_code_refuses_only_its_publication() -> None:
    """Mosquitto sends 0x95 for a message above its `message_size_limit`; paho would close the connection."""
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    with session() as opened:
        opened.client.on_publish = lambda _client, _data, _mid, code, _properties: codes.put(code.value)
        for code in (0x95, 0x87, 0x00):
            mid = opened.client.publish("t", b"", 1).mid
            opened.send(bytes((0x40, 3, 0, mid, code)))
        assert [codes.get(timeout=WAIT_S) for _ in range(3)] == [0x83, 0x87, 0x00]


def test_connect_asks_for_packets_of_a_limited_size() -> None:
    """The client would otherwise accept packets of 256 MB, which any other client may publish."""
    with session() as opened:
        packet = opened.connect_packet
        (limit,) = struct.unpack_from(">I", packet, packet.index(b"\x27") + 1)
        assert limit < 1 << 27


def test_the_network_thread_reports_its_iterations_and_received_bytes() -> None:
    """paho calls these public methods itself; a dead link or thread would go unnoticed without them."""
    with session() as opened:
        opened.send(publish_packet(0, b"", b"\0"))
        opened.received.get(timeout=WAIT_S)
        last_received_ns, loop_ns = opened.monitor.last_received_ns, opened.client.loop_ns
        opened.send(publish_packet(0, b"", b"\0"))
        opened.received.get(timeout=WAIT_S)
        assert opened.monitor.last_received_ns > last_received_ns
        assert opened.client.loop_ns > loop_ns


def test_no_ping_is_sent_while_other_data_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to a ping behind that data would be late, and paho would close a connection that is only slow."""
    with session() as opened:
        monkeypatch.setattr(Client, "loop_misc", lambda _: pytest.fail("paho would ping"))
        monkeypatch.setattr(opened.client, "want_write", lambda: True)
        assert opened.client.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS
        monkeypatch.undo()
