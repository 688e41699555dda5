"""A publication of MQTT's, read without a copy: paho's own reader makes five of the whole message, one for each field."""

import struct
from typing import NamedTuple

from shared.mqtt import properties as mqtt_properties
from shared.mqtt.bus import Properties

_QOS, _RETAIN = 0x06, 0x01  # Bits of a packet's first byte.
_NUMBER = struct.Struct(">H")


class MalformedPublishError(Exception):
    """A packet that is no publication."""


class Publication(NamedTuple):
    """One as it came."""

    topic: bytes  # Not decoded yet.
    qos: int
    number: int  # By which the broker knows it; 0 of one that is not to be acknowledged.
    is_retained: bool
    properties: Properties
    payload: memoryview  # A view of the packet.


def read(command: int, packet: memoryview, *, has_properties: bool) -> Publication:
    """The publication in a packet.

    Args:
        command: the packet's first byte.
        packet: what follows the packet's length.
        has_properties: whether it is one of MQTT 5.

    Raises:
        MalformedPublishError: its lengths go beyond it.
    """
    qos, number, properties = (command & _QOS) >> 1, 0, Properties()
    try:
        at = _NUMBER.size + _NUMBER.unpack_from(packet)[0]
        topic = bytes(packet[_NUMBER.size : at])
        if qos:
            (number,) = _NUMBER.unpack_from(packet, at)
            at += _NUMBER.size
        if has_properties:
            properties, taken = mqtt_properties.read(packet[at:])
            at += taken
    except (struct.error, mqtt_properties.MalformedPropertiesError) as error:
        raise MalformedPublishError(f"a publication of {len(packet)} bytes that is broken off") from error
    if at > len(packet):
        raise MalformedPublishError(f"a publication of {len(packet)} bytes that says it has {at} before its payload")
    return Publication(topic, qos, number, bool(command & _RETAIN), properties, packet[at:])
