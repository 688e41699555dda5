"""SIGHUP to `skylane broker`: renewed files without dropping clients."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.processes.child import ChildProcess
from shared.errors import SkylaneError
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import MqttSettings
from shared.network.address import Address, Certificates
from skylane import cli
from tests.support.mqtt_bus import WAIT_S, free_port

pytestmark = pytest.mark.mosquitto
RELOADED, REFUSED = "reloaded: ", "nothing was reloaded"


class BrokerCommand(ChildProcess):
    """A running `skylane broker`, whose lines are read one after the other."""

    def __init__(self, *flags: str) -> None:
        port = free_port()
        command = [sys.executable, "-m", "skylane", "broker", "--port", str(port), *flags]
        super().__init__(command, environment={"PYTHONUNBUFFERED": "1"})
        self.url = f"{'mqtts' if '--secured' in flags else 'mqtt'}://127.0.0.1:{port}"
        self._read = 0

    def wait_for(self, expected: str) -> str:
        """Returns the next line, which must contain a text."""
        assert self.wait_until(lambda: self.output.count("\n") > self._read, WAIT_S), f"no line with {expected!r}"
        line = self.output.splitlines()[self._read]
        self._read += 1
        assert expected in line, line
        return line

    def reload(self, expected: str) -> str:
        """Sends SIGHUP and returns the line that follows, which contains `expected`."""
        os.kill(self.pid, signal.SIGHUP)
        line = self.wait_for(expected)
        assert self.is_running
        return line


@contextmanager
def broker_command(*flags: str) -> Iterator[BrokerCommand]:
    """Runs `skylane broker` until the end of the block, when it must end by SIGTERM with 0."""
    with BrokerCommand(*flags) as running:
        running.wait_for("broker: ")
        yield running
        os.kill(running.pid, signal.SIGTERM)
        running.wait_until(lambda: not running.is_running, WAIT_S)
        assert running.exit_code == 0


def issue(folder: Path, *vehicles: str) -> CertificateAuthority:
    """Makes an authority with the certificates of a broker and of some vehicles."""
    authority = CertificateAuthority(folder)
    authority.broker(["127.0.0.1"], 30)
    for name in vehicles:
        authority.node(Role.VEHICLE, name, 30)
    authority.renew_crl(30)
    return authority


def connect(broker: BrokerCommand, folder: Path, name: str) -> MqttBus:
    """Connects as a vehicle."""
    files = Certificates(*(str(folder / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key")))
    return MqttBus(
        Address.parse(broker.url), f"test-{uuid4().hex[:8]}", MqttSettings(connect_timeout_s=5.0), certificates=files
    )


def refusal(connecting: Callable[[], MqttBus]) -> str:
    """Tries to connect until it is refused; returns why. Mosquitto reads its files a moment after the signal."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            connecting().close()
        except SkylaneError as error:
            return str(error)
    raise AssertionError("every connection was accepted")


def test_a_revoked_vehicle_is_refused_after_a_reload_and_the_others_stay(tmp_path: Path) -> None:
    """A restart would drop every vehicle of the fleet to keep one out."""
    issue(tmp_path, "car", "bus")
    with broker_command("--secured", str(tmp_path)) as broker, ExitStack() as stack:
        car = connect(broker, tmp_path, "car")
        stack.callback(car.close)
        connect(broker, tmp_path, "bus").close()
        for kind in ("crt", "key"):
            shutil.copy(tmp_path / f"bus.{kind}", tmp_path / f"stolen.{kind}")
        time.sleep(1.1)  # Of two lists of one second, OpenSSL may take either.
        later = CertificateAuthority(tmp_path)
        later.revoke("bus")
        later.renew_crl(30)
        broker.reload(RELOADED)
        assert "it was revoked" in refusal(lambda: connect(broker, tmp_path, "stolen"))
        assert car.is_connected


def test_a_renewed_certificate_of_the_broker_is_used_after_a_reload(tmp_path: Path) -> None:
    """Certificates expire after 90 days; the broker runs longer."""
    authority = issue(tmp_path, "car")
    with broker_command("--secured", str(tmp_path), "--metrics", f"127.0.0.1:{(port := free_port())}") as broker:
        broker.wait_for(f"metrics: http://127.0.0.1:{port}/metrics")
        with ExitStack() as stack:
            car = connect(broker, tmp_path, "car")
            stack.callback(car.close)
            authority.broker(["127.0.0.1"], 60, again=True)
            broker.reload(RELOADED)
            connect(broker, tmp_path, "car").close()
            assert car.is_connected
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S).text
        samples = {
            (sample.name, sample.labels.get("certificate")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        days = (samples["skylane_certificate_expiry_timestamp_seconds", "server"] - time.time()) / 86400
        assert 59 < days < 61
        days = (samples["skylane_revocation_list_expiry_timestamp_seconds", None] - time.time()) / 86400
        assert 29 < days < 31


def test_unusable_files_are_not_loaded(tmp_path: Path) -> None:
    """Mosquitto would refuse every client from then on. It keeps its files, and the command says which one to mend."""
    issue(tmp_path, "car")
    other_key = (tmp_path / "car.key").read_text()
    cases = [
        ("crl.pem", "garbage", "crl.pem is damaged"),
        ("crl.pem", "", "crl.pem is damaged"),
        ("crl.pem", None, "has no crl.pem"),
        ("ca.crt", "garbage", "ca.crt is damaged"),
        ("ca.crt", None, "has no ca.crt"),
        ("server.crt", "half of a", "server.crt and server.key"),
        ("server.key", "garbage", "server.crt and server.key"),
        ("server.key", other_key, "server.crt and server.key"),
        ("server.key", None, "has no server.key"),
    ]
    with broker_command("--secured", str(tmp_path)) as broker:
        for name, content, problem in cases:
            saved = (tmp_path / name).read_bytes()
            if content is None:
                (tmp_path / name).unlink()
            else:
                (tmp_path / name).write_text(content)
            line = broker.reload(REFUSED)
            assert problem in line
            assert "skylane broker certs" in line
            (tmp_path / name).write_bytes(saved)
            connect(broker, tmp_path, "car").close()
        CertificateAuthority(tmp_path, now=datetime.now(UTC) - timedelta(days=91)).renew_crl(90)
        assert "--renew-list" in broker.reload(REFUSED)
        connect(broker, tmp_path, "car").close()
        CertificateAuthority(tmp_path).renew_crl(30)
        broker.reload(RELOADED)
        connect(broker, tmp_path, "car").close()


def test_a_password_file_is_read_again(tmp_path: Path) -> None:
    """A broker with a configuration of its own reloads what Mosquitto reloads."""
    port, passwords = free_port(), tmp_path / "passwords"
    passwords.write_text("")
    config = tmp_path / "mosquitto.conf"
    lines = (f"listener {port} 127.0.0.1", "user root", "allow_anonymous false", f"password_file {passwords}")
    config.write_text("\n".join(lines))  # The user that reads the folder of the test.
    address = Address("127.0.0.1", port, username="anna", password="secret")
    settings = MqttSettings(connect_timeout_s=5.0)
    with broker_command("--config", str(config)) as broker:
        with pytest.raises(SkylaneError):
            MqttBus(address, "test-early", settings)
        subprocess.run(["mosquitto_passwd", "-b", str(passwords), "anna", "secret"], check=True)
        broker.reload(RELOADED)
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            with suppress(SkylaneError):
                MqttBus(address, "test-late", settings).close()
                return
        pytest.fail("the new password was never accepted")


def test_the_embedded_broker_says_that_it_has_nothing_to_reload() -> None:
    """It goes on all the same."""
    with broker_command("--kind", "embedded") as broker:
        assert "the embedded broker has no certificates" in broker.reload(REFUSED)


def test_a_closed_terminal_still_ends_the_broker() -> None:
    """Its SIGHUP is no request to reload: a broker without a terminal would stay for ever."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "skylane", "broker", "--port", str(free_port())]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    os.close(follower)
    assert process.stdout is not None
    try:
        assert b"broker: " in process.stdout.readline()
        os.close(leader)
        process.wait(WAIT_S)
        assert b"reloaded" not in process.stdout.read()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("address", ["9465", "127.0.0.1:99999", "192.0.2.1:0"])
def test_metrics_at_an_impossible_address_end_the_command(address: str) -> None:
    """And no broker is left behind."""
    before = psutil.Process().children()
    ended = CliRunner().invoke(cli.skylane, ["broker", "--port", str(free_port()), "--metrics", address])
    assert re.search("give an address of this machine|write HOST:PORT", str(ended.exception))
    assert psutil.Process().children() == before
