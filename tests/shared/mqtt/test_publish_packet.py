"""Publications as this house reads them, against paho's own reader and over a real broker."""

import queue
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.mqtt import publish_packet
from shared.mqtt.bus import Delivery, Properties
from shared.mqtt.properties import packed
from shared.mqtt.publish_packet import MalformedPublishError
from shared.network.broker_options import BrokerOptions

TRACED = Properties(traceparent="00-1")


def packet(
    command: int, topic: bytes = b"a/b", payload: bytes = b"\xff" * 40, properties: bytes | None = None
) -> bytes:
    """What follows the length of a publication."""
    number = b"\x00\x07" if command & 6 else b""
    return struct.pack(">H", len(topic)) + topic + number + (properties or b"") + payload


@pytest.mark.parametrize("command", [0x30, 0x31, 0x32, 0x3A, 0x3B])
@pytest.mark.parametrize("beside", [None, Properties(), TRACED])
def test_it_is_read_as_it_was_sent(command: int, beside: Properties | None) -> None:
    """With the bits of its first byte, and by either version."""
    properties = None if beside is None else packed(beside)
    body = packet(command, properties=properties)
    message = publish_packet.read(command, memoryview(body), has_properties=beside is not None)
    assert (message.topic, bytes(message.payload)) == (b"a/b", b"\xff" * 40)
    assert message.number == (7 if command & 6 else 0)
    assert (message.qos, message.is_retained) == (command >> 1 & 3, bool(command & 1))
    assert message.properties == (beside or Properties())
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
    ],
)
def test_one_that_is_broken_off_ends_the_connection_and_not_the_thread(body: bytes) -> None:
    """Of any other error paho's thread would die."""
    with pytest.raises(MalformedPublishError):
        publish_packet.read(0x32, memoryview(body), has_properties=True)


@pytest.mark.parametrize("has_properties", [False, True])
@given(command=st.integers(0x30, 0x3F), body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(has_properties: object, command: int, body: bytes) -> None:
    """A broker lets much pass, and may be none."""
    try:
        message = publish_packet.read(command, memoryview(body), has_properties=bool(has_properties))
    except MalformedPublishError:
        return
    assert bytes(body).endswith(bytes(message.payload))


def test_a_payload_of_any_size_comes_whole(mosquitto_url: str) -> None:
    """In as many pieces as the network makes of it, several of them behind one another."""
    sizes = [0, 1, 127, 128, 16_383, 16_384, 70_000, 3_000_000, 5]
    payloads = [bytes(number % 251 for number in range(min(size, 1000))) * (size // 1000 or 1) for size in sizes]
    came: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    with (
        BrokerOptions(mosquitto_url).open("reader", None) as reader,
        BrokerOptions(mosquitto_url).open("writer", None) as writer,
    ):
        for qos in (0, 1):
            reader.subscribe(f"publications/{qos}", qos, came.put)
        reader.subscribe("publications/ready", 1, came.put)
        reader.publish("publications/ready", b"", qos=1)
        assert came.get(timeout=60).topic == "publications/ready"
        for qos in (0, 1):
            for payload in payloads:
                writer.publish(f"publications/{qos}", payload, qos=qos, properties=TRACED)
            for payload in payloads:
                delivery = came.get(timeout=60)
                assert delivery.payload == payload
                assert delivery.properties == TRACED


def test_a_length_of_properties_in_five_bytes_is_none() -> None:
    """Four are the most."""
    body = b"\x00\x03a/b" + b"\xff" * 5
    with pytest.raises(MalformedPublishError):
        publish_packet.read(0x30, memoryview(body), has_properties=True)
