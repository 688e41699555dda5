"""The MQTT proxy: it finds whole packets in a byte stream, and repeats, reorders or forwards them."""

import queue
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.broker.broker import Broker
from shared.mqtt.bus import Ack, Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from tests.support.faults.mqtt_proxy import PUBLISH, Disorder, MqttProxy, Packet, encoded_length, packets

_WAIT_S = 60.0


def _packet(kind: int, body: bytes) -> Packet:
    """Returns a packet with this body."""
    start = bytes([kind << 4]) + encoded_length(len(body))
    return Packet(start + body, len(start))


def _publish(topic: str, number: int = 0) -> Packet:
    return _packet(PUBLISH, len(topic).to_bytes(2) + topic.encode() + bytes([number]))


@given(st.lists(st.tuples(st.integers(1, 14), st.binary(max_size=300)), max_size=5), st.integers(1, 7))
def test_packets_are_found_in_a_stream_of_pieces_of_any_size(bodies: list[tuple[int, bytes]], size: int) -> None:
    """TCP does not keep packet boundaries: one read may return half a length field, or two packets."""
    sent = [_packet(kind, body) for kind, body in bodies]
    stream = b"".join(packet.data for packet in sent)
    found = list(packets(stream[start : start + size] for start in range(0, len(stream), size)))
    assert found == sent
    assert [packet.kind for packet in found] == [kind for kind, _ in bodies]


@given(st.sampled_from([0, 1]), st.binary(max_size=200), st.binary(max_size=300), st.binary(max_size=300))
def test_a_payload_is_replaced_and_the_rest_is_kept(qos: int, properties: bytes, old: bytes, new: bytes) -> None:
    """The lengths of packet and properties are variable, and a message of QoS 0 has no identifier."""

    def publish(payload: bytes) -> Packet:
        start = b"\0\x01t" + b"\0\x07" * qos + encoded_length(len(properties)) + properties
        packet = _packet(PUBLISH, start + payload)
        return replace(packet, data=bytes([packet.data[0] | qos << 1]) + packet.data[1:])

    assert publish(old).payload == old
    assert publish(old).with_payload(new) == publish(new)


def test_bytes_that_are_not_mqtt_end_the_connection() -> None:
    """Otherwise the proxy would wait for the end of an invalid length field until the scenario ends."""
    with pytest.raises(OSError, match="not MQTT"):
        list(packets(iter([b"\x30\xff\xff\xff\xff\xff"])))


def test_disorder_repeats_and_swaps_only_messages_of_one_topic_kind() -> None:
    """The counters include every copy, because an uncounted copy would make the number of lost masks wrong."""
    disorder = Disorder("masks", 3)
    one, two, three = (_publish("skylane/v1/masks/car/left", number) for number in (1, 2, 3))
    frame = _publish("skylane/v1/frames/m/car/left")
    assert list(disorder(one)) == [one]
    disorder.is_on = True
    assert list(disorder(one)) == []
    assert list(disorder(frame)) == [frame]
    assert list(disorder(two)) == [two, two, two, one, one, one]
    assert list(disorder(three)) == []
    disorder.is_on = False
    assert list(disorder(one)) == [one, three, three, three]
    assert (disorder.passed, disorder.repeated) == (11, 6)


@pytest.mark.mosquitto
def test_the_proxy_forwards_all_messages_and_disconnects_on_request(mosquitto_broker: Broker) -> None:
    """Any other change that the proxy makes would look like a fault of Skylane."""
    received: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    with (
        MqttProxy((mosquitto_broker.listener.host, mosquitto_broker.listener.port)) as proxy,
        MqttBus(Address.parse(proxy.url), f"test-{uuid4().hex[:12]}", on_connected=lambda: connected.put(None)) as bus,
    ):
        connected.get(timeout=_WAIT_S)
        bus.subscribe("skylane/v1/masks/car/left", 1, received.put)
        proxy.to_client = Disorder("masks", 1)
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        bus.publish("skylane/v1/masks/car/left", bytes(100_000), qos=1, acknowledged=acks.put)
        assert received.get(timeout=_WAIT_S).payload == bytes(100_000)
        acks.get(timeout=_WAIT_S)  # An unacknowledged message would be sent again.
        proxy.hang_up()
        connected.get(timeout=_WAIT_S)
        bus.publish("skylane/v1/masks/car/left", b"after", qos=1)
        assert received.get(timeout=_WAIT_S).payload == b"after"
        assert bus.reconnects == 1
