import json
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ops.link.cli import apply_options, link
from shared.network.link_spec import PROFILES

NOTHING = dict.fromkeys(type(PROFILES["none"]).model_fields)


def test_the_command_forwards_until_ctrl_c_and_prints_its_counts() -> None:
    """Four bytes are sent through a link with a delay."""
    with socket.create_server(("127.0.0.1", 0)) as far:
        command = ["link", "--to", f"127.0.0.1:{far.getsockname()[1]}", "--listen", "0", "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "skylane", *command, "--delay-ms", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "delay_ms 1" in line
            port = int(line.split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as near:
                near.sendall(b"ping")
                there, _ = far.accept()
                with there:
                    assert there.recv(4) == b"ping"
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    counts = json.loads(out)
    assert (counts["bytes_up"], counts["bytes_down"], counts["connections"]) == (4, 0, 1)


def test_an_option_for_both_directions_overrides_single_ones_of_the_profile() -> None:
    """`--profile 4g --bandwidth-mbps 5` must not leave 20 Mbit/s up."""
    spec = apply_options(PROFILES["4g"], {**NOTHING, "bandwidth_mbps": 5.0})
    assert spec.bytes_per_s(up=True) == spec.bytes_per_s(up=False) == 5e6 / 8
    assert spec.delay_ms == PROFILES["4g"].delay_ms
    one = apply_options(PROFILES["4g"], {**NOTHING, "bandwidth_up_mbps": 5.0})
    assert one.bytes_per_s(up=False) == PROFILES["4g"].bytes_per_s(up=False)


@pytest.mark.parametrize("to", ["broker", "broker:", ":1883", "broker:mqtt", "broker:70000"])
def test_an_invalid_address_is_rejected(to: str) -> None:
    """The error states the expected form."""
    done = CliRunner().invoke(link, ["--to", to])
    assert done.exit_code == 2
    assert "Invalid value for '--to'" in done.output
    assert "write HOST:PORT" in done.output


def test_a_value_out_of_range_is_rejected() -> None:
    """The error states the range."""
    done = CliRunner().invoke(link, ["--to", "127.0.0.1:1", "--loss-percent", "99"])
    assert done.exit_code == 2
    assert "Invalid value for '--loss-percent': 99 is too large: give a number from 0 to 50" in done.output
