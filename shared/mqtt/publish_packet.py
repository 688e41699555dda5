"""Reads MQTT PUBLISH packets without copying the payload; paho's reader copies the whole message five times."""

import struct
from typing import NamedTuple

from shared.mqtt import properties as mqtt_properties
from shared.mqtt.bus import Properties

_QOS, _RETAIN = 0x06, 0x01  # Bits of a packet's first byte.
_UINT16 = struct.Struct(">H")


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


def read(command: int, packet: memoryview, *, has_properties: bool) -> PublishPacket:
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
            properties, taken = mqtt_properties.read(packet[at:])
            at += taken
    except (struct.error, mqtt_properties.MalformedPropertiesError) as error:
        raise MalformedPublishError(f"PUBLISH of {len(packet)} bytes is truncated") from error
    if at > len(packet):
        raise MalformedPublishError(f"PUBLISH of {len(packet)} bytes claims {at} bytes before its payload")
    return PublishPacket(topic, qos, mid, bool(command & _RETAIN), properties, packet[at:])
