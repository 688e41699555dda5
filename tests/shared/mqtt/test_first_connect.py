"""Brokers that lack what the nodes need are named at the first connection."""

import re
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from shared.errors import SkylaneError
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Will
from tests.support.mqtt_bus import free_port


def announcing(properties: bytes) -> str:
    """Starts a broker that accepts every client with these properties of MQTT 5; returns its URL."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(bytes([0x20, 3 + len(properties), 0, 0, len(properties)]) + properties)
                    connection.recv(4096)

    threading.Thread(target=serve, daemon=True).start()
    return f"mqtt://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("properties", "lacking"),
    [
        (b"\x25\0", "no retained messages"),
        (b"\x24\0", "no quality of service (QoS) 1"),
        (b"\x28\0", "no subscriptions with wildcards"),
        (b"\x2a\0", "no shared subscriptions"),
        (b"\x27\0\0\3\xe8", "no packets of more than 1000 bytes"),
        (b"\x24\0\x25\0", "no retained messages, no quality of service (QoS) 1"),
    ],
)
def test_a_broker_that_announces_what_it_lacks_is_refused_at_once(properties: bytes, lacking: str) -> None:
    """Nodes would find no workers, or lose frames. Trying again does not help, so no second attempt is made."""
    attempts: list[str] = []
    with pytest.raises(SkylaneError, match=re.escape(f"has {lacking}, which Skylane requires")):
        BrokerOptions(announcing(properties)).open("node", None, on_waiting=attempts.append)
    assert attempts == []


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("option", "lacking"), [("retain_available false", "no retained messages"), ("max_qos 0", "no quality of service")]
)
def test_a_broker_that_refuses_the_will_for_what_it_lacks_is_named(tmp_path: Path, option: str, lacking: str) -> None:
    """Mosquitto refuses a retained will before it announces anything: that was taken for no broker at all."""
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {free_port()} 127.0.0.1\nallow_anonymous true\n{option}\n")
    attempts: list[str] = []
    with Broker.start(config=config) as broker, pytest.raises(SkylaneError, match=f"has {lacking}"):
        BrokerOptions(broker.url).open("node", Will("topic", b"gone"), on_waiting=attempts.append)
    assert attempts == []
