import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.properties import VariableByteIntegers

from shared.messages.frame import FRAME_CONTENT_TYPE
from shared.messages.topics import MASKS, FrameId
from shared.mqtt.bus import Properties
from shared.mqtt.packets import MAX_BYTES, MalformedPropertiesError, encode, read_properties
from tests.support.mqtt_bus import Inbox, connect

PAYLOAD = b"\xff" * 40
LONGEST = "x" * 64
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), max_size=20)  # MQTT allows no others.


def packet(properties: bytes) -> memoryview:
    """The part of a PUBLISH packet after its topic and packet identifier."""
    return memoryview(VariableByteIntegers.encode(len(properties)) + properties + PAYLOAD)


def user_property(name: bytes, value: bytes) -> bytes:
    """An encoded user property."""
    return b"\x26" + struct.pack(">H", len(name)) + name + struct.pack(">H", len(value)) + value


@given(
    st.builds(
        Properties,
        content_type=st.none() | TEXTS,
        response_topic=st.none() | TEXTS,
        correlation=st.none() | st.binary(max_size=200),
        expiry_s=st.none() | st.integers(0, (1 << 32) - 1),
        traceparent=st.none() | st.from_regex("[0-9a-f-]{1,60}", fullmatch=True),
    )
)
def test_encoded_properties_read_back(properties: Properties) -> None:
    """A mixed-up field would send a reply to the wrong topic."""
    written = encode(properties)
    assert read_properties(memoryview(written + PAYLOAD)) == (properties, len(written))


def test_the_longest_properties_of_our_nodes_are_within_the_limit_and_readable_by_paho() -> None:
    """Names have at most 64 characters; other clients read them with other libraries."""
    sent = Properties(
        content_type=FRAME_CONTENT_TYPE,
        response_topic=MASKS.of(vehicle=LONGEST, camera=LONGEST),
        correlation=str(FrameId(LONGEST, LONGEST, LONGEST, 10**18 - 1)).encode(),
        expiry_s=86_400,
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )
    written = encode(sent)
    assert len(written) <= MAX_BYTES // 2
    paho: Any = PahoProperties(PacketTypes.PUBLISH)
    assert paho.unpack(written)[1] == len(written)
    assert (paho.ContentType, paho.ResponseTopic, paho.CorrelationData) == (
        sent.content_type, sent.response_topic, sent.correlation,
    )  # fmt: skip
    assert (paho.MessageExpiryInterval, paho.UserProperty) == (86_400, [("traceparent", sent.traceparent)])
    assert read_properties(memoryview(bytes(paho.pack()))) == (sent, len(written))


def test_other_properties_are_skipped() -> None:
    """A PUBLISH packet of paho with every kind of property, and with user properties that Skylane does not know."""
    paho: Any = PahoProperties(PacketTypes.PUBLISH)
    paho.PayloadFormatIndicator = 1
    paho.TopicAlias = 3
    paho.SubscriptionIdentifier = 200_000
    paho.UserProperty = [("traceparent", "00-1"), ("x", "traceparent"), ("", "")]
    paho.CorrelationData = b"mine"
    written = bytes(paho.pack())
    assert read_properties(memoryview(written)) == (Properties(correlation=b"mine", traceparent="00-1"), len(written))


@pytest.mark.parametrize(
    "properties",
    [
        user_property(b"", b"") * 1000,  # Above the limit.
        user_property(b"traceparent", b"\xff"),
        user_property(b"traceparent", b"00-1\x1b[2J"),  # The reply would repeat it.
        b"\x03\x00\x01a" * 2,  # A repeated content type.
        b"\x7f",  # An unknown property.
        b"\x02\x00",  # Truncated.
        b"\x03\x00\x09a",
        b"\x26\x00\x01a\x00\x09",
        b"\x0b\xff\xff\xff\xff",
    ],
)
def test_unreadable_properties_are_ignored(properties: bytes) -> None:
    """The message is delivered without properties, and the network thread survives."""
    found, taken = read_properties(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD
    assert found == Properties()


@given(st.binary(max_size=200))
def test_any_bytes_are_skipped_by_their_length(properties: bytes) -> None:
    """A broker may forward malformed properties."""
    _, taken = read_properties(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD


@pytest.mark.parametrize("packet", [b"", b"\x80", b"\xff" * 5])
def test_an_endless_length_is_refused(packet: bytes) -> None:
    """The beginning of the payload is unknown."""
    with pytest.raises(MalformedPropertiesError):
        read_properties(memoryview(packet))


@pytest.mark.mosquitto
def test_thousands_of_properties_are_skipped_quickly(mosquitto_url: str) -> None:
    """With paho's reader, one message with half a megabyte of properties blocked a worker for three minutes."""
    many = PahoProperties(PacketTypes.PUBLISH)
    many.CorrelationData = b"mine"
    object.__setattr__(many, "UserProperty", [("", "")] * 3000)
    inbox = Inbox()
    with connect(mosquitto_url) as bus:
        bus.subscribe("properties/many", 1, inbox.put)
        bus.client.publish("properties/many", b"x", 1, properties=many)
        received = inbox.next()
    assert received.payload == b"x"
    assert received.properties == Properties()
