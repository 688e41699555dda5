"""A publication of MQTT's, read without a copy: paho's own reader makes five of the whole message, one for each field."""

import struct
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt.client import MQTTMessage

from shared import mqtt_properties

_DUPLICATE, _QOS, _RETAIN = 0x08, 0x06, 0x01  # Bits of a packet's first byte.
_NUMBER = struct.Struct(">H")


class MalformedError(Exception):
    """A packet that is no publication."""


def read(command: int, packet: memoryview, *, has_properties: bool) -> MQTTMessage:
    """The message; its payload is a view of the packet.

    Args:
        command: the packet's first byte.
        packet: what follows the packet's length.
        has_properties: whether it is one of MQTT 5.

    Raises:
        MalformedError: its lengths go beyond it.
    """
    try:
        (size,) = _NUMBER.unpack_from(packet)
        at = _NUMBER.size + size
        message = MQTTMessage(topic=bytes(packet[_NUMBER.size : at]))
        message.qos = (command & _QOS) >> 1
        if message.qos:
            (message.mid,) = _NUMBER.unpack_from(packet, at)
            at += _NUMBER.size
        if has_properties:
            message.properties, taken = mqtt_properties.read(packet[at:])
            at += taken
    except (struct.error, LookupError, MQTTException) as error:
        raise MalformedError(f"a publication of {len(packet)} bytes that is broken off") from error
    if at > len(packet):
        raise MalformedError(f"a publication of {len(packet)} bytes that says it has {at} before its payload")
    message.dup, message.retain = bool(command & _DUPLICATE), bool(command & _RETAIN)
    payload: Any = packet[at:]  # paho declares bytes.
    message.payload = payload
    return message
