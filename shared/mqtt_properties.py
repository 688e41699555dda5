"""What MQTT 5 says beside a payload: ours as paho's, and back."""

import struct

from paho.mqtt import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.properties import VariableByteIntegers

from shared.bus import Properties

MAX_BYTES = 1024  # Twice what the longest names take.


def read(packet: memoryview) -> tuple[PahoProperties, int]:
    """The properties that a publication's packet begins with, and how many bytes they take there.

    None where they are over the limit, or no reader of paho's: anybody may put thousands of them beside his message. paho
    copies the whole message for each, and all that it has read of them, and what it cannot read ends its thread: a
    hundred thousand take it three minutes.
    """
    size, prefix = VariableByteIntegers.decode(bytes(packet[:4]))
    properties = PahoProperties(PacketTypes.PUBLISH)
    if size <= MAX_BYTES:
        try:
            properties.unpack(bytes(packet[: prefix + size]))
        except (MQTTException, ValueError, LookupError, struct.error):
            properties = PahoProperties(PacketTypes.PUBLISH)
    return properties, prefix + size


def to_paho(properties: Properties) -> PahoProperties:
    """As a publication carries them."""
    packed = PahoProperties(PacketTypes.PUBLISH)
    if properties.content_type is not None:
        packed.ContentType = properties.content_type
    if properties.response_topic is not None:
        packed.ResponseTopic = properties.response_topic
    if properties.correlation is not None:
        packed.CorrelationData = properties.correlation
    if properties.expiry_s is not None:
        packed.MessageExpiryInterval = properties.expiry_s
    if properties.traceparent is not None:
        packed.UserProperty = [("traceparent", properties.traceparent)]
    return packed


def from_paho(properties: PahoProperties | None) -> Properties:
    """As they came; nothing where the broker speaks MQTT 3.1.1."""
    return Properties(
        content_type=getattr(properties, "ContentType", None),
        response_topic=getattr(properties, "ResponseTopic", None),
        correlation=getattr(properties, "CorrelationData", None),
        expiry_s=getattr(properties, "MessageExpiryInterval", None),
        traceparent=dict(getattr(properties, "UserProperty", ())).get("traceparent"),
    )
