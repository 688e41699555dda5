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
    """Until all that was published is acknowledged."""
    known = threading.Event()
    bus.publish("tests/known", b"", qos=1, acknowledged=lambda _: known.set())
    assert known.wait(WAIT_S)


@pytest.mark.mosquitto
def test_a_broker_that_is_away_is_asked_for_one_sign(mosquitto_broker: Broker) -> None:
    """It is asked every second while nothing comes, and of an outage that lasts for days all would be sent at its end."""
    with MqttBus(Address.parse(mosquitto_broker.url), f"test-{uuid4().hex[:12]}") as bus:
        transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        _wait_for_broker(bus)
        os.kill(mosquitto_broker.pid, signal.SIGSTOP)
        try:
            for _ in range(100):
                transport.ask_for_sign()
            assert len(bus._unacknowledged) == 1
        finally:
            os.kill(mosquitto_broker.pid, signal.SIGCONT)
        _wait_for_broker(bus)
        asked_ns = clock.now_ns()
        transport.ask_for_sign()
        _wait_for_broker(bus)
        assert transport.last_received_ns > asked_ns
