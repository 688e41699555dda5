"""What MQTT 5 says beside a payload: ours as paho's, and back."""

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from shared.bus import Properties


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
