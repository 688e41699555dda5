"""The MQTT transport with a real broker."""

import os
import signal
import threading
from uuid import uuid4

import pytest

from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.broker.broker import Broker
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address

WAIT_S = 60.0


def _wait_for_broker(bus: MqttBus) -> None:
    """Waits until the broker has acknowledged all messages."""
    known = threading.Event()
    bus.publish("tests/known", b"", qos=1, acknowledged=lambda _: known.set())
    assert known.wait(WAIT_S)


@pytest.mark.mosquitto
def test_a_broker_that_hangs_is_pinged_once(mosquitto_broker: Broker) -> None:
    """Otherwise a long outage would queue one ping per second."""
    with MqttBus(Address.parse(mosquitto_broker.url), f"test-{uuid4().hex[:12]}") as bus:
        transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        _wait_for_broker(bus)
        os.kill(mosquitto_broker.pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                transport.ping()
            assert len(bus._unacknowledged) == 1
        finally:
            os.kill(mosquitto_broker.pid, signal.SIGCONT)
        _wait_for_broker(bus)
        pinged_ns = clock.now_ns()
        transport.ping()
        _wait_for_broker(bus)
        assert transport.last_received_ns > pinged_ns
