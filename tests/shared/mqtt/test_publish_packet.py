import struct

import pytest

from shared.mqtt import packets
from shared.mqtt.bus import Properties
from shared.mqtt.packets import MalformedPublishError, encode
from tests.support.mqtt_bus import Inbox, connect, subscribed_inbox

TRACED = Properties(traceparent="00-1")


def packet(
    command: int, topic: bytes = b"a/b", payload: bytes = b"\xff" * 40, properties: bytes | None = None
) -> bytes:
    """The body of a PUBLISH packet."""
    mid = b"\x00\x07" if command & 6 else b""
    return struct.pack(">H", len(topic)) + topic + mid + (properties or b"") + payload


@pytest.mark.parametrize("command", [0x30, 0x31, 0x32, 0x3A, 0x3B])
@pytest.mark.parametrize("sent", [None, Properties(), TRACED])
def test_a_packet_reads_as_it_was_sent(command: int, sent: Properties | None) -> None:
    """This covers all flags of the first byte, with and without MQTT 5 properties."""
    properties = None if sent is None else encode(sent)
    body = packet(command, properties=properties)
    message = packets.read_publish(command, memoryview(body), has_properties=sent is not None)
    assert (message.topic, bytes(message.payload)) == (b"a/b", b"\xff" * 40)
    assert message.mid == (7 if command & 6 else 0)
    assert (message.qos, message.is_retained) == (command >> 1 & 3, bool(command & 1))
    assert message.properties == (sent or Properties())
    assert message.payload.obj is body  # Not a copy.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00\x09a/b",
        b"\x00\x03a/b",
        b"\x00\x03a/b\x00",
        b"\x00\x03a/b\x00\x07",
        b"\x00\x03a/b\x00\x07\x09",
        b"\x00\x03a/b\x00\x07" + b"\xff" * 5,  # A length of properties in five bytes.
    ],
)
def test_a_truncated_packet_is_refused(body: bytes) -> None:
    """The client closes the connection on this error; any other would end the network thread."""
    with pytest.raises(MalformedPublishError):
        packets.read_publish(0x32, memoryview(body), has_properties=True)


def test_payloads_of_any_size_arrive(mosquitto_url: str) -> None:
    """The network splits and joins packets."""
    sizes = [0, 1, 127, 128, 16_383, 16_384, 70_000, 3_000_000, 5]
    payloads = [bytes(number % 251 for number in range(min(size, 1000))) * (size // 1000 or 1) for size in sizes]
    inbox = Inbox()
    with connect(mosquitto_url) as reader, connect(mosquitto_url) as writer:
        reader.subscribe("publications/0", 0, inbox.put)
        reader.subscribe("publications/1", 1, inbox.put)
        subscribed_inbox(reader, "publications/ready")
        for qos in (0, 1):
            for payload in payloads:
                writer.publish(f"publications/{qos}", payload, qos=qos, properties=TRACED)
            for payload in payloads:
                received = inbox.next()
                assert received.payload == payload
                assert received.properties == TRACED
