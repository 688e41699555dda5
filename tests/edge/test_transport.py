"""The MQTT transport with a real broker."""

import os
import queue
import signal

import pytest

from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport
from ops.broker.broker import Broker
from shared import clock
from shared.messages.topics import VEHICLE_STATUS
from shared.mqtt.bus import Ack, Delivery
from shared.mqtt.paho_bus import MqttBus
from tests.support.mqtt_bus import connect

WAIT_S = 60.0


def _wait_for_broker(*buses: MqttBus) -> None:
    """Waits until the broker has acknowledged all messages of each bus."""
    for bus in buses:
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        bus.publish("tests/settled", b"", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S).accepted


@pytest.mark.mosquitto
def test_a_broker_that_hangs_is_pinged_once(mosquitto_broker: Broker) -> None:
    """Otherwise a long outage would queue one ping per second."""
    pings: list[Delivery] = []
    with connect(mosquitto_broker.url) as bus, connect(mosquitto_broker.url) as observer:
        transport = MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1")
        observer.subscribe(VEHICLE_STATUS.of(vehicle="car"), 1, pings.append)
        _wait_for_broker(bus, observer)
        pings.clear()
        os.kill(mosquitto_broker.pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                transport.ping()
        finally:
            os.kill(mosquitto_broker.pid, signal.SIGCONT)
        _wait_for_broker(bus, observer)
        assert len(pings) == 1
        pinged_ns = clock.now_ns()
        transport.ping()
        _wait_for_broker(bus)
        assert transport.last_received_ns > pinged_ns
