import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.properties import VariableByteIntegers

from shared.messages.frame import FRAME_CONTENT_TYPE
from shared.messages.topics import MASKS, FrameId
from shared.mqtt.bus import Delivery, Properties
from shared.mqtt.properties import MAX_BYTES, MalformedPropertiesError, packed, read
from shared.network.broker_options import BrokerOptions

PAYLOAD = b"\xff" * 40
LONGEST = "x" * 64


def packet(properties: bytes) -> memoryview:
    """What of a publication stands behind its topic and number."""
    return memoryview(VariableByteIntegers.encode(len(properties)) + properties + PAYLOAD)


def user_property(name: bytes, value: bytes) -> bytes:
    """One, as it is on the wire."""
    return b"\x26" + struct.pack(">H", len(name)) + name + struct.pack(">H", len(value)) + value


@given(
    st.builds(
        Properties,
        content_type=st.none() | st.text(max_size=20),
        response_topic=st.none() | st.text(max_size=20),
        correlation=st.none() | st.binary(max_size=200),
        expiry_s=st.none() | st.integers(0, (1 << 32) - 1),
        traceparent=st.none() | st.from_regex("[0-9a-f-]{1,60}", fullmatch=True),
    )
)
def test_what_is_written_is_read(properties: Properties) -> None:
    """One mixed up and an answer goes astray."""
    written = packed(properties)
    assert read(memoryview(written + PAYLOAD)) == (properties, len(written))


def test_the_longest_that_our_nodes_send_are_read_by_paho_and_us() -> None:
    """The bound is for strangers: names of 64 characters are ours. Other clients read them with a library of their own."""
    sent = Properties(
        content_type=FRAME_CONTENT_TYPE,
        response_topic=MASKS.of(vehicle=LONGEST, camera=LONGEST),
        correlation=str(FrameId(LONGEST, LONGEST, LONGEST, 10**18 - 1)).encode(),
        expiry_s=86_400,
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )
    written = packed(sent)
    assert len(written) <= MAX_BYTES // 2
    paho: Any = PahoProperties(PacketTypes.PUBLISH)
    assert paho.unpack(written)[1] == len(written)
    assert (paho.ContentType, paho.ResponseTopic, paho.CorrelationData) == (
        sent.content_type, sent.response_topic, sent.correlation,
    )  # fmt: skip
    assert (paho.MessageExpiryInterval, paho.UserProperty) == (86_400, [("traceparent", sent.traceparent)])
    assert read(memoryview(bytes(paho.pack()))) == (sent, len(written))


def test_what_others_send_beside_is_passed_over() -> None:
    """All that a publication may have, by paho, and names of a user's own that are not ours."""
    paho: Any = PahoProperties(PacketTypes.PUBLISH)
    paho.PayloadFormatIndicator = 1
    paho.TopicAlias = 3
    paho.SubscriptionIdentifier = 200_000
    paho.UserProperty = [("traceparent", "00-1"), ("x", "traceparent"), ("", "")]
    paho.CorrelationData = b"mine"
    written = bytes(paho.pack())
    assert read(memoryview(written)) == (Properties(correlation=b"mine", traceparent="00-1"), len(written))


@pytest.mark.parametrize(
    "properties",
    [
        user_property(b"", b"") * 1000,  # Over the limit.
        user_property(b"traceparent", b"\xff"),
        user_property(b"traceparent", b"00-1\x1b[2J"),  # It is said again beside the answer.
        b"\x03\x00\x01a" * 2,  # The content type, twice.
        b"\x7f",  # No property at all.
        b"\x02\x00",  # Cut off.
        b"\x03\x00\x09a",
        b"\x26\x00\x01a\x00\x09",
        b"\x0b\xff\xff\xff\xff",
    ],
)
def test_what_cannot_be_read_is_left_out(properties: bytes) -> None:
    """One such message must cost a node neither its thread nor its time; it comes as one that says nothing."""
    found, taken = read(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD
    assert found == Properties()


@given(st.binary(max_size=200))
def test_no_properties_break_the_reader(properties: bytes) -> None:
    """Whatever a broker lets pass."""
    _, taken = read(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD


@pytest.mark.parametrize("packet", [b"", b"\x80", b"\xff" * 5])
def test_a_length_that_does_not_end_is_refused(packet: bytes) -> None:
    """Nobody knows where the payload begins."""
    with pytest.raises(MalformedPropertiesError):
        read(memoryview(packet))


@pytest.mark.mosquitto
def test_a_message_with_thousands_of_properties_costs_a_node_nothing(mosquitto_url: str) -> None:
    """Half a megabyte of them kept a worker busy for three minutes: one message, and it was gone."""
    came: list[Delivery] = []
    has_come = threading.Event()

    def take(delivery: Delivery) -> None:
        came.append(delivery)
        has_come.set()

    many = PahoProperties(PacketTypes.PUBLISH)
    many.CorrelationData = b"mine"
    object.__setattr__(many, "UserProperty", [("", "")] * 3000)
    with BrokerOptions(mosquitto_url).open("reader", None) as reader:
        reader.subscribe("properties/of/one", 1, take)
        # By the same connection: a broker does one thing after the other, and the subscription is there.
        reader._client.publish("properties/of/one", b"x", 1, properties=many)
        assert has_come.wait(60)
    assert came[0].payload == b"x"
    assert came[0].properties == Properties()
