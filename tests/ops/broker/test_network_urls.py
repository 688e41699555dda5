"""The addresses at which other machines reach a broker."""

import re
import socket

import pytest

from ops.broker.broker import Broker
from tests.support.command import Command
from tests.support.mqtt_bus import connect, free_port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
@pytest.mark.parametrize("kind", [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"])
def test_a_broker_on_all_addresses_names_those_that_can_be_used(host: str, kind: str) -> None:
    """`mqtt://127.0.0.1:1883` is of no use on the vehicle, and neither is `mqtt://0.0.0.0:1883`."""
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with Broker.start(host=host, kind=kind, open_to_network=True) as broker:
        *addresses, by_name = broker.network_urls
        assert by_name == f"mqtt://{socket.gethostname()}:{broker.listener.port}"
        assert not any(re.search(r"0\.0\.0\.0|127\.|\[::|fe80", url) for url in addresses)
        for url in addresses:
            connect(url).close()


def test_a_broker_on_one_address_names_no_others() -> None:
    """Other machines cannot reach it there."""
    with Broker.start(kind="embedded") as broker:
        assert broker.network_urls == []


def test_the_command_prints_them() -> None:
    """The worker and the vehicle on other machines need one of them."""
    flags = ("--host", "0.0.0.0", "--open-to-network", "--port", free_port(), "--kind", "embedded")
    with Command("broker", *flags) as running:
        lines = [running.read_line() for _ in range(2)]
    assert lines[0].startswith("broker: ")
    assert re.match(rf"from other machines: .*mqtt://{socket.gethostname()}:\d+", lines[1])
