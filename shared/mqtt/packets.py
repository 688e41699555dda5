"""Reads PUBLISH packets and matches their topics; writes and reads their MQTT 5 properties (MQTT 5.0, sections 2.2.2 and 3.3.2.3)."""

import re
import struct
from typing import NamedTuple

from paho.mqtt import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.properties import VariableByteIntegers

from shared.mqtt.bus import Properties

_UINT16, _UINT32 = struct.Struct(">H"), struct.Struct(">I")


_QOS, _RETAIN = 0x06, 0x01  # Bits of a packet's first byte.


class MalformedPublishError(Exception):
    """A packet is not a valid PUBLISH."""


class PublishPacket(NamedTuple):
    """A received PUBLISH packet."""

    topic: bytes  # Not decoded yet.
    qos: int
    mid: int  # Packet identifier; 0 for QoS 0.
    is_retained: bool
    properties: Properties
    payload: memoryview  # A view of the packet.


def read_publish(command: int, packet: memoryview, *, has_properties: bool) -> PublishPacket:
    """Reads a PUBLISH packet.

    Args:
        command: First byte of the packet.
        packet: The bytes after the packet's length.
        has_properties: True for MQTT 5.

    Raises:
        MalformedPublishError: a length exceeds the packet.
    """
    qos, mid, properties = (command & _QOS) >> 1, 0, Properties()
    try:
        at = _UINT16.size + _UINT16.unpack_from(packet)[0]
        topic = bytes(packet[_UINT16.size : at])
        if qos:
            (mid,) = _UINT16.unpack_from(packet, at)
            at += _UINT16.size
        if has_properties:
            properties, taken = read_properties(packet[at:])
            at += taken
    except (struct.error, MalformedPropertiesError) as error:
        raise MalformedPublishError(f"PUBLISH of {len(packet)} bytes is truncated") from error
    if at > len(packet):
        raise MalformedPublishError(f"PUBLISH of {len(packet)} bytes claims {at} bytes before its payload")
    return PublishPacket(topic, qos, mid, bool(command & _RETAIN), properties, packet[at:])


MAX_BYTES = 1024  # Twice what the longest names need.

_EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION, _USER = 0x02, 0x03, 0x08, 0x09, 0x26
_CONTINUATION, _LENGTH_BYTES = 0x80, 4
_TRACEPARENT = "traceparent"
_TRACE = re.compile("[0-9a-f-]{1,128}")  # W3C Trace Context of any version; the reply repeats it.


class MalformedPropertiesError(Exception):
    """The properties of a PUBLISH packet are malformed."""


def encode(properties: Properties) -> bytes:
    """Encodes properties, with their length in front."""
    parts: list[bytes] = []
    if properties.content_type is not None:
        parts += (bytes((_CONTENT_TYPE,)), _with_length(properties.content_type.encode()))
    if properties.response_topic is not None:
        parts += (bytes((_RESPONSE_TOPIC,)), _with_length(properties.response_topic.encode()))
    if properties.correlation is not None:
        parts += (bytes((_CORRELATION,)), _with_length(properties.correlation))
    if properties.expiry_s is not None:
        parts += (bytes((_EXPIRY,)), _UINT32.pack(properties.expiry_s))
    if properties.traceparent is not None:
        parts += (bytes((_USER,)), _with_length(_TRACEPARENT.encode()), _with_length(properties.traceparent.encode()))
    body = b"".join(parts)
    length, high = len(body) & 0x7F, len(body) >> 7  # Seven bits a byte, least significant first (MQTT 5.0, 1.5.5).
    return (bytes((length | _CONTINUATION, high)) if high else bytes((length,))) + body


def read_properties(packet: memoryview) -> tuple[Properties, int]:
    """Reads the properties at the start of `packet`; returns them and the number of bytes they take.

    Properties that are malformed or above the limit are ignored, so that the message itself is still delivered.

    Raises:
        MalformedPropertiesError: their length cannot be read.
    """
    try:
        size, begin = VariableByteIntegers.decode(bytes(packet[:_LENGTH_BYTES]))
    except (MQTTException, IndexError) as error:
        raise MalformedPropertiesError("the length of the properties is no variable byte integer") from error
    found = PahoProperties(PacketTypes.PUBLISH)
    try:
        if size <= MAX_BYTES:
            found.unpack(bytes(packet[: begin + size]))
    except Exception:  # noqa: BLE001  paho raises exceptions of any type for malformed properties.
        return Properties(), begin + size
    given = vars(found)
    traces = [value for name, value in given.get("UserProperty", ()) if name == _TRACEPARENT]
    return Properties(
        content_type=given.get("ContentType"),
        response_topic=given.get("ResponseTopic"),
        correlation=given.get("CorrelationData"),
        expiry_s=given.get("MessageExpiryInterval"),
        traceparent=traces[-1] if traces and _TRACE.fullmatch(traces[-1]) else None,
    ), begin + size


def _with_length(value: bytes) -> bytes:
    return _UINT16.pack(len(value)) + value


def matches(topic_filter: str, topic: str) -> bool:
    """Returns whether a topic matches an MQTT filter, which may have `+`, `#` and a `$share/<group>/` prefix."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    patterns, levels = topic_filter.split("/"), topic.split("/")
    for position, pattern in enumerate(patterns):
        if pattern == "#":
            return True
        if position >= len(levels) or pattern not in ("+", levels[position]):
            return False
    return len(patterns) == len(levels)
