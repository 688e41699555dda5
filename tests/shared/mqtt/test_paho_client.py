"""What `WatchedClient` relies on in paho: a release that differs fails here."""

import queue
import socket
import struct

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion

from shared.mqtt.keepalive import LinkMonitor
from shared.mqtt.paho_client import WatchedClient
from shared.mqtt.publish_packet import Publication

WAIT_S = 60.0
CONNACK = {MQTTProtocolVersion.MQTTv5: b"\x20\x03\0\0\0", MQTTProtocolVersion.MQTTv311: b"\x20\x02\0\0"}


class Conversation:
    """A client that is connected to a socket of the test's, in place of a broker."""

    def __init__(self, protocol: MQTTProtocolVersion) -> None:
        self.received: queue.SimpleQueue[Publication] = queue.SimpleQueue()
        self.watch = LinkMonitor(15.0, 5.0)
        self.client = WatchedClient(
            "test",
            protocol,
            self.watch,
            received=self.received.put,
            will=None,
            context=None,
            renew=lambda _: None,
            timeout_s=15.0,
            keepalive_s=15,
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client.open("127.0.0.1", listener.getsockname()[1])
            self._broker, _ = listener.accept()
        self._broker.settimeout(WAIT_S)
        self.connect = self._broker.recv(1000)
        self.client.loop_start()
        self.say(CONNACK[protocol])

    def say(self, packet: bytes) -> None:
        """Have the client receive a packet."""
        self._broker.sendall(packet)

    def hear(self, count: int) -> bytes:
        """So many bytes of what the client sends."""
        return self._broker.recv(count, socket.MSG_WAITALL)

    def close(self) -> None:
        """End both."""
        self.client.end()
        self._broker.close()


def publication(qos: int, payload: bytes, properties: bytes) -> bytes:
    """A PUBLISH on "t", with number 7 where it has one."""
    body = b"\0\x01t" + (b"\0\x07" if qos else b"") + properties + payload
    assert len(body) < 128
    return bytes((0x30 | qos << 1, len(body))) + body


@pytest.mark.parametrize("protocol", list(CONNACK), ids=lambda protocol: protocol.name)
def test_a_publication_comes_by_our_reader_and_is_acknowledged(protocol: MQTTProtocolVersion) -> None:
    """The one private method that is overridden, and the fields of paho's that it reads."""
    assert callable(Client._packet_handle)
    is_5 = protocol is MQTTProtocolVersion.MQTTv5
    talk = Conversation(protocol)
    try:
        for qos in (0, 1):
            talk.say(publication(qos, b"payload", b"\x05\x02\0\0\0\x09" if is_5 else b""))
            came = talk.received.get(timeout=WAIT_S)
            assert (came.topic, came.qos, bytes(came.payload)) == (b"t", qos, b"payload")
            assert came.properties.expiry_s == (9 if is_5 else None)
        assert talk.hear(4) == b"\x40\x02\0\x07", "PUBACK of number 7"
    finally:
        talk.close()


def test_an_acknowledgement_with_a_code_of_other_packets_refuses_that_publication_alone() -> None:
    """Mosquitto's 0x95, of what is over its `message_size_limit`, ends a stock client's connection."""
    talk = Conversation(MQTTProtocolVersion.MQTTv5)
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    talk.client.on_publish = lambda _client, _data, _mid, code, _properties: codes.put(code.value)
    try:
        for code in (0x95, 0x87, 0x00):
            number = talk.client.publish("t", b"", 1).mid
            talk.say(bytes((0x40, 3, 0, number, code)))
        assert [codes.get(timeout=WAIT_S) for _ in range(3)] == [0x83, 0x87, 0x00]
    finally:
        talk.close()


def test_packets_of_a_bounded_size_are_asked_for() -> None:
    """A quarter of a gigabyte would be taken for what any client may publish."""
    talk = Conversation(MQTTProtocolVersion.MQTTv5)
    try:
        (limit,) = struct.unpack_from(">I", talk.connect, talk.connect.index(b"\x27") + 1)
        assert limit < 1 << 27
    finally:
        talk.close()


def test_the_network_thread_tells_of_its_turns_and_of_what_it_hears() -> None:
    """It calls these public methods itself; without them a dead link or thread would go unnoticed."""
    talk = Conversation(MQTTProtocolVersion.MQTTv5)
    try:
        talk.say(publication(0, b"", b"\0"))
        talk.received.get(timeout=WAIT_S)
        last_received_ns, turned_ns = talk.watch.last_received_ns, talk.client.turned_ns
        talk.say(publication(0, b"", b"\0"))
        talk.received.get(timeout=WAIT_S)
        assert talk.watch.last_received_ns > last_received_ns
        assert talk.client.turned_ns > turned_ns
    finally:
        talk.close()


def test_no_ping_is_sent_behind_what_waits_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would come too late, and paho would close a connection that only crawls."""
    talk = Conversation(MQTTProtocolVersion.MQTTv5)
    monkeypatch.setattr(Client, "loop_misc", lambda _: pytest.fail("paho would ping"))
    try:
        monkeypatch.setattr(talk.client, "want_write", lambda: True)
        assert talk.client.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS
    finally:
        monkeypatch.undo()
        talk.close()
