import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.properties import VariableByteIntegers

from shared.bus import Delivery, Properties
from shared.connection import Connection
from shared.messages import FRAME_CONTENT_TYPE
from shared.mqtt_properties import MAX_BYTES, from_paho, read, to_paho
from shared.topics import MASKS, FrameId

PAYLOAD = b"\xff" * 40
LONGEST = "x" * 64


def packet(properties: bytes) -> memoryview:
    """What of a publication stands behind its topic and number."""
    return memoryview(VariableByteIntegers.encode(len(properties)) + properties + PAYLOAD)


def user_property(name: bytes, value: bytes) -> bytes:
    """One, as it is on the wire."""
    return b"\x26" + struct.pack(">H", len(name)) + name + struct.pack(">H", len(value)) + value


def test_the_longest_that_our_nodes_send_are_read() -> None:
    """The bound is for strangers: names of 64 characters are ours."""
    sent = Properties(
        content_type=FRAME_CONTENT_TYPE,
        response_topic=MASKS.of(vehicle=LONGEST, camera=LONGEST),
        correlation=str(FrameId(LONGEST, LONGEST, LONGEST, 10**18 - 1)).encode(),
        expiry_s=86_400,
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )
    packed = bytes(to_paho(sent).pack())
    assert len(packed) <= MAX_BYTES // 2
    properties, taken = read(memoryview(packed + PAYLOAD))
    assert from_paho(properties) == sent
    assert taken == len(packed)


@pytest.mark.parametrize(
    "properties",
    [
        user_property(b"", b"") * 1000,  # Over the limit.
        user_property(b"a", "\ufeff".encode()),  # A mark that paho takes for an error.
        user_property(b"a", b"\xff"),
        b"\x03\x00\x01a" * 2,  # The content type, twice.
        b"\x7f",  # No property at all.
        b"\x02\x00",  # Cut off.
    ],
)
def test_what_cannot_be_read_is_left_out(properties: bytes) -> None:
    """One such message would end the network thread, and the worker with it; it comes as one that says nothing."""
    found, taken = read(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD
    assert from_paho(found) == Properties()


@given(st.binary(max_size=200))
def test_no_properties_break_the_reader(properties: bytes) -> None:
    """Whatever a broker lets pass."""
    found, taken = read(packet(properties))
    assert packet(properties)[taken:] == PAYLOAD
    from_paho(found)


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
    with Connection(mosquitto_url).open("reader", None) as reader:
        reader.subscribe("properties/of/one", 1, take)
        # By the same connection: a broker does one thing after the other, and the subscription is there.
        reader._client.publish("properties/of/one", b"x", 1, properties=many)
        assert has_come.wait(10)
    assert came[0].payload == b"x"
    assert came[0].properties == Properties()
