import asyncio
import getpass
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import psutil
import pytest

from ops.broker import broker as broker_module
from ops.broker.broker import Broker, PortInUseError
from ops.broker.certificate_authority import AUTHORITY_DAYS, CertificateAuthority
from ops.broker.embedded import PeekableReader
from ops.broker.mosquitto import BrokerError, MosquittoListener, first_listener
from shared.errors import MissingExtraError, SkylaneError
from shared.network.address import Address
from tests.support.command import Command
from tests.support.mqtt_bus import connect, free_port, subscribed_inbox

KINDS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


def has_ended(pid: int, timeout_s: float = 0.0) -> bool:
    """Returns whether process `pid` ends within `timeout_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_delivers_a_frame_and_ends_with_the_block(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves neither a process nor files behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    payload = os.urandom(2_354_176)  # A 1936×1216 Bayer frame.
    with Broker.start(kind=kind) as broker, connect(broker.url) as bus:
        assert any(tmp_path.iterdir())
        inbox = subscribed_inbox(bus, "test/frame")
        bus.publish("test/frame", payload, qos=1)
        assert inbox.next().payload == payload
        assert broker.kind == kind
    assert has_ended(broker.pid)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_ends_when_its_owner_is_killed(kind: str) -> None:
    """A broker that outlives a killed `make demo` would block the port of the next one."""
    script = (
        "import os\nfrom ops.broker.broker import Broker\n"
        f"broker = Broker.start(kind={kind!r})\n"
        "print(broker.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    owner = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    assert has_ended(int(owner.stdout), timeout_s=60)


@pytest.mark.mosquitto
def test_auto_prefers_mosquitto(mosquitto_broker: Broker) -> None:
    """Only Mosquitto supports shared subscriptions; the description shows which broker runs."""
    with Broker.start() as broker:
        assert broker.kind == "mosquitto"
        assert broker.description == f"broker: Mosquitto {broker.version} at {broker.url} ({broker.program})"
        assert broker.version[0].isdigit()
        assert broker.listener.port != mosquitto_broker.listener.port


def test_auto_falls_back_to_the_embedded_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` runs without system packages; the description gives the reason."""
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    with Broker.start() as broker:
        assert broker.kind == "embedded"
        assert "(no Mosquitto on this machine; MQTT 3.1.1, one worker)" in broker.description


def test_a_port_in_use_is_refused() -> None:
    """The server that holds the port would otherwise be taken for the broker."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(
            PortInUseError, match=f"port {port} of 127.0.0.1 is in use: stop .* choose another with --port"
        ):
            Broker.start(port)


def test_a_network_address_needs_a_flag() -> None:
    """The development settings accept every client, so the broker must not be reachable by accident."""
    with pytest.raises(BrokerError, match="open-to-network"):
        Broker.start(host="0.0.0.0")


def test_a_broker_may_be_open_to_the_network() -> None:
    """Two development machines need no certificates; the URL works on this machine."""
    with Broker.start(host="0.0.0.0", kind="embedded", open_to_network=True) as broker:
        assert broker.url == f"mqtt://127.0.0.1:{broker.listener.port}"


@pytest.mark.mosquitto
def test_a_secured_broker_may_be_open_to_the_network(tmp_path: Path) -> None:
    """It accepts only clients with certificates, so no further flag is needed."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    with Broker.start(host="0.0.0.0", secured=tmp_path) as broker:
        assert broker.url == f"mqtts://127.0.0.1:{broker.listener.port}"


@pytest.mark.mosquitto
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
@pytest.mark.parametrize(("owner", "user"), [("root", "mosquitto"), ("nobody", "nobody")])
def test_root_runs_a_secured_broker_as_another_user(
    tmp_path: Path, owner: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that other machines can reach should not run as root. Its user needs no access to the folder, or to TMPDIR."""
    (tmp_path / "private").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    certs = tmp_path / "certs"
    CertificateAuthority(certs).broker(["127.0.0.1"], 1)
    certs.chmod(0o700)
    shutil.chown(certs / "server.key", owner)
    with Broker.start(secured=certs) as broker:
        assert psutil.Process(broker.pid).username() == user
        context = ssl.create_default_context(cafile=certs / "ca.crt")
        with (
            socket.create_connection((broker.listener.host, broker.listener.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.version() == "TLSv1.3"


def days_ago(folder: Path, days: int) -> CertificateAuthority:
    """Returns an authority with an earlier clock."""
    return CertificateAuthority(folder, now=datetime.now(UTC) - timedelta(days=days))


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("expire", "problem"),
    [
        (
            lambda folder: days_ago(folder, 91).broker(["127.0.0.1"], 90, again=True),
            r"server\.crt expired on .* --broker HOST --again'",
        ),
        (
            lambda folder: days_ago(folder, 91).renew_crl(90),
            r"crl\.pem expired on \d{4}-\d\d-\d\d: renew it with .* --renew-list'",
        ),
        (
            lambda folder: days_ago(folder / "old", AUTHORITY_DAYS + 1).certificate_file.replace(folder / "ca.crt"),
            r"ca\.crt expired on .*: create a new authority in a new folder",
        ),
        (lambda folder: (folder / "ca.crt").unlink(), "has no ca.crt: make it with 'skylane broker certs"),
        (lambda folder: (folder / "crl.pem").unlink(), "has no crl.pem: make it with"),
        (lambda folder: (folder / "server.crt").unlink(), "has no server.crt: make it with"),
        (lambda folder: (folder / "server.key").unlink(), "has no server.key: make it with .* --broker HOST'"),
        (
            lambda folder: (folder / "ca.crt").write_text("x"),
            r"Error: Unable to load CA certificates.*ca\.crt.* / .*OpenSSL Error\[0\]",
        ),
    ],
    ids=["certificate", "list", "authority", "no ca", "no list", "no certificate", "no key", "unusable"],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, expire: Callable[[Path], object], problem: str) -> None:
    """The broker would start and refuse every client with a TLS error, or end with the names of functions of OpenSSL."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 90)
    expire(tmp_path)
    with pytest.raises(SkylaneError, match=problem):
        Broker.start(secured=tmp_path)


@pytest.mark.mosquitto
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_a_key_of_an_unknown_user_is_reported(tmp_path: Path) -> None:
    """Files copied from another machine may belong to a user number without a name, which Mosquitto needs."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    os.chown(tmp_path / "server.key", 54321, -1)
    with pytest.raises(BrokerError, match=r"server\.key belongs to user 54321, which has no name .*'chown mosquitto "):
        Broker.start(secured=tmp_path)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"\x10\x17\0\4MQTT\5\6\0\x0f\0\0\1c\0\0\1t\0\1x", id="MQTT 5 with a will"),
        pytest.param(b"\x16\3\1\2\0\1\0\1\xfc\3\3", id="TLS"),
    ],
)
def test_the_embedded_broker_closes_connections_of_other_protocols(embedded_url: str, first: bytes) -> None:
    """Without that, every node would run into two timeouts before it tries MQTT 3.1.1."""
    address = Address.parse(embedded_url)
    with socket.create_connection((address.host, address.port), timeout=60) as client:
        client.sendall(first)
        assert client.recv(1) == b""


@pytest.mark.parametrize("sizes", [(1, 1, 2, 4, 1, 1), (2, 7, 1), (5, 5), (1, 9)])
@pytest.mark.parametrize(("length", "level"), [(b"\x0a", 4), (b"\x8a\x01", 5), (b"\x8a\x80\x80\x01", 4)])
def test_a_packet_that_was_looked_at_is_read_again(length: bytes, level: int, sizes: tuple[int, ...]) -> None:
    """The broker reads it in pieces of any size, of which one may be longer than what was looked at."""
    packet = b"\x10" + length + b"\0\4MQTT" + bytes([level]) + b"and the rest"

    async def read() -> tuple[int, list[bytes]]:
        reader = asyncio.StreamReader()
        reader.feed_data(packet)
        reader.feed_eof()
        peekable = PeekableReader(reader)
        return await peekable.protocol_level(), [await peekable.read(size) for size in (*sizes, 3)]

    found, pieces = asyncio.run(read())
    assert found == level
    assert [len(piece) for piece in pieces] == [*sizes, 3]
    assert packet.startswith(b"".join(pieces))


def test_the_embedded_broker_cannot_be_secured(tmp_path: Path) -> None:
    """It supports neither client certificates nor an ACL."""
    with pytest.raises(BrokerError, match="the embedded broker has no access control"):
        Broker.start(kind="embedded", secured=tmp_path)


def test_an_address_of_another_machine_is_refused() -> None:
    """The error names the address instead of a failed start."""
    with pytest.raises(BrokerError, match=r"cannot listen on 192\.0\.2\.1"):
        Broker.start(host="192.0.2.1", open_to_network=True)


@pytest.mark.mosquitto
def test_a_refused_configuration_is_reported_with_mosquittos_message(tmp_path: Path) -> None:
    """Mosquitto's message names the wrong line."""
    config = tmp_path / "wrong.conf"
    config.write_text(f"listener {free_port()} 127.0.0.1\nno_such_setting 1\n")
    with pytest.raises(BrokerError, match=r"ended at once: .*no_such_setting|ended at once: .*wrong.conf"):
        Broker.start(config=config)


@pytest.mark.mosquitto
def test_a_certificate_that_is_refused_late_is_reported(tmp_path: Path) -> None:
    """Mosquitto opens its port first and reads the certificate then, from a pipe here that is slow to be written."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    listener = MosquittoListener("127.0.0.1", free_port(), tls=True)
    pipe, config = tmp_path / "late.crt", tmp_path / "late.conf"
    os.mkfifo(pipe)
    config.write_text(
        f"listener {listener.port} {listener.host}\ncertfile {pipe}\nkeyfile {tmp_path / 'server.key'}\n"
        f"cafile {tmp_path / 'ca.crt'}\nuser {getpass.getuser()}\n"
    )

    def write_late() -> None:
        with pipe.open("w") as opened:  # Returns when Mosquitto opens it.
            with socket.create_connection((listener.host, listener.port)):
                time.sleep(0.5)  # As long as a loaded machine may take.
            opened.write("not a certificate")

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_late)
        with pytest.raises(BrokerError, match=r"ended at once: .*Unable to load server certificate.*late\.crt"):
            Broker.start(config=config)
        writing.result()


def test_a_configuration_needs_a_listener(tmp_path: Path) -> None:
    """Without one, the address of the broker is unknown."""
    config = tmp_path / "empty.conf"
    config.write_text("# listener 1883\n")
    with pytest.raises(BrokerError, match=r"empty.conf has no listener: add a line"):
        first_listener(config)


def test_a_missing_embedded_broker_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either broker, the error is the command that installs one."""
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)

    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(broker_module, "version", missing)
    with pytest.raises(MissingExtraError, match=r"skylane\[broker\]"):
        Broker.start()


def test_wait_returns_when_the_broker_dies(mosquitto_broker: Broker) -> None:
    """`skylane broker` ends then."""
    assert mosquitto_broker.wait(0) is None
    os.kill(mosquitto_broker.pid, signal.SIGKILL)
    assert mosquitto_broker.wait(60) == -signal.SIGKILL


def test_the_command_runs_until_sigterm() -> None:
    """systemd, containers and `make` end it so, with exit code 0."""
    with Command("broker", "--port", 0, "--kind", "embedded") as running:
        assert running.read_line().startswith("broker: the embedded amqtt ")
        assert running.end(signal.SIGTERM) == (0, "")
