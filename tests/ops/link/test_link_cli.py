import json
import signal
import socket

import pytest
from click.testing import CliRunner

from ops.link.cli import link, with_faults
from shared.network.link_spec import PROFILES
from tests.support.command import Command


def test_the_command_forwards_until_ctrl_c_and_prints_its_counts() -> None:
    """Four bytes are sent through a link with a delay."""
    with socket.create_server(("127.0.0.1", 0)) as far:
        to = f"127.0.0.1:{far.getsockname()[1]}"
        with Command("link", "--to", to, "--listen", "0", "--json", "--set", "delay_ms=1") as running:
            running.wait_for("delay_ms 1")
            port = int(running.log_lines[0].split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as near:
                near.sendall(b"ping")
                there, _ = far.accept()
                with there:
                    assert there.recv(4) == b"ping"
                code, out = running.end(signal.SIGINT)
    assert code == 0
    counts = json.loads(out)
    assert (counts["bytes_up"], counts["bytes_down"], counts["connections"]) == (4, 0, 1)


def test_a_property_of_both_directions_overrides_single_ones_of_the_profile() -> None:
    """`--profile 4g --set bandwidth_mbps=5` must not leave 20 Mbit/s up."""
    spec = with_faults(PROFILES["4g"], {"bandwidth_mbps": "5"})
    assert spec.bytes_per_s(up=True) == spec.bytes_per_s(up=False) == 5e6 / 8
    assert spec.delay_ms == PROFILES["4g"].delay_ms
    one = with_faults(PROFILES["4g"], {"bandwidth_up_mbps": "5"})
    assert one.bytes_per_s(up=False) == PROFILES["4g"].bytes_per_s(up=False)


@pytest.mark.parametrize("to", ["broker", "broker:", ":1883", "broker:mqtt", "broker:70000"])
def test_an_invalid_address_is_rejected(to: str) -> None:
    """The error states the expected form."""
    done = CliRunner().invoke(link, ["--to", to])
    assert done.exit_code == 2
    assert "Invalid value for '--to'" in done.output
    assert "write HOST:PORT" in done.output


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("loss_percent=99", "loss_percent: give at most 50 (given '99')"),
        ("delay_ms=nan", "delay_ms: Input should be a finite number (given 'nan')"),
        ("delay=5", "delay: unknown key: did you mean delay_ms or delay_up_ms?"),
        ("delay_ms", "Invalid value for '--set': 'delay_ms': write KEY=VALUE, such as delay_ms=50"),
    ],
)
def test_a_property_that_is_not_valid_is_rejected(given: str, problem: str) -> None:
    """The error states the range, the nearest key, or the form."""
    done = CliRunner().invoke(link, ["--to", "127.0.0.1:1", "--set", given])
    assert done.exit_code == 2
    assert problem in done.output
