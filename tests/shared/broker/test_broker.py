import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from shared.broker import broker as broker_module
from shared.broker.broker import Broker, PortInUseError
from shared.broker.certificate_authority import AUTHORITY_DAYS, CertificateAuthority
from shared.broker.mosquitto import BrokerError, first_listener
from shared.errors import MissingExtraError
from shared.network.address import Address
from shared.network.certificate_expiry import ExpiredError

KINDS = [pytest.param("mosquitto", marks=pytest.mark.mosquitto), "embedded"]


def round_trip(broker: Broker, payload: bytes) -> bytes:
    """Publish `payload` at QoS 1 and return what a subscriber received."""
    arrived = threading.Event()
    received: list[bytes] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)

    def take(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        received.append(bytes(message.payload))
        arrived.set()

    def subscribed(client: paho.Client, *_: object) -> None:
        client.publish("test/round-trip", payload, qos=1)

    client.on_message = take
    client.on_subscribe = subscribed
    client.connect(broker.listener.host, broker.listener.port)
    client.loop_start()
    client.subscribe("test/round-trip", qos=1)
    assert arrived.wait(60)
    client.disconnect()
    client.loop_stop()
    return received[0]


def has_ended(pid: int, timeout_s: float = 0.0) -> bool:
    """Whether process `pid` has ended, or does so within `timeout_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_carries_a_frame_and_ends_with_the_block(kind: str) -> None:
    """Either broker must carry what a camera sends, and leave no process and no files behind."""
    payload = os.urandom(2_354_176)  # A 1936×1216 Bayer frame.
    with Broker.start(kind=kind) as broker:
        assert round_trip(broker, payload) == payload
        assert broker.kind == kind
        folder = Path(broker._folder.name)
        assert folder.is_dir()
    assert has_ended(broker.pid)
    assert not folder.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_ends_when_its_owner_is_killed(kind: str) -> None:
    """A broker that outlives a killed `make demo` would hold the port of the next one."""
    script = (
        "import os\nfrom shared.broker.broker import Broker\n"
        f"broker = Broker.start(kind={kind!r})\n"
        "print(broker.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    owner = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    assert has_ended(int(owner.stdout), timeout_s=60)


@pytest.mark.mosquitto
def test_auto_prefers_mosquitto_and_says_so(mosquitto_broker: Broker) -> None:
    """Only Mosquitto shares a subscription among workers; the user must see which broker is in use."""
    with Broker.start() as broker:
        assert broker.kind == "mosquitto"
        assert broker.description == f"broker: Mosquitto {broker.version} at {broker.url} ({broker.program})"
        assert broker.version[0].isdigit()
        assert broker.listener.port != mosquitto_broker.listener.port


def test_auto_falls_back_to_the_embedded_broker_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` must run where nothing can be installed by the system's package manager."""
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    with Broker.start() as broker:
        assert broker.kind == "embedded"
        assert "(no Mosquitto on this machine; MQTT 3.1.1, one worker)" in broker.description


def test_refuses_a_taken_port() -> None:
    """Connecting to whoever holds the port would pass for a broker that started."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use: stop"):
            Broker.start(port)


def test_refuses_to_be_open_to_the_network_unasked() -> None:
    """The development settings let anyone in: that may not leave the machine by accident."""
    with pytest.raises(BrokerError, match="open-to-network"):
        Broker.start(host="0.0.0.0")


def test_is_open_to_the_network_when_asked() -> None:
    """A vehicle and a cloud on two desks need no certificates yet; the URL is one that works on this machine."""
    with Broker.start(host="0.0.0.0", kind="embedded", open_to_network=True) as broker:
        assert broker.url == f"mqtt://127.0.0.1:{broker.listener.port}"


@pytest.mark.mosquitto
def test_a_secured_broker_may_be_open_to_the_network(tmp_path: Path) -> None:
    """It lets in certificates alone: there is nothing to ask for twice."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    with Broker.start(host="0.0.0.0", secured=tmp_path) as broker:
        assert broker.url == f"mqtts://127.0.0.1:{broker.listener.port}"


@pytest.mark.mosquitto
@pytest.mark.parametrize("missing", ["ca.crt", "crl.pem", "server.crt", "server.key"])
def test_a_secured_broker_names_the_file_it_lacks(tmp_path: Path, missing: str) -> None:
    """Mosquitto's own words would name OpenSSL's functions."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    (tmp_path / missing).unlink()
    with pytest.raises(BrokerError, match=rf"has no {missing}: make it with 'skylane broker certs .* --broker HOST'"):
        Broker.start(secured=tmp_path)


@pytest.mark.mosquitto
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run it as somebody else")
@pytest.mark.parametrize(("owner", "user"), [("root", "mosquitto"), ("nobody", "nobody")])
def test_a_secured_broker_that_root_starts_is_not_root(tmp_path: Path, owner: str, user: str) -> None:
    """What other machines reach should not be root because whoever started it is; the folder need not be open to it."""
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


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("expire", "problem"),
    [
        (
            lambda then: then.broker(["127.0.0.1"], 90, again=True),
            r"server\.crt expired on .* --broker HOST --again'",
        ),
        (lambda then: then.renew_list(90), r"crl\.pem expired on \d{4}-\d\d-\d\d: renew it with .* --renew-list'"),
    ],
)
def test_what_has_expired_is_told_before_the_broker_starts(
    tmp_path: Path, expire: Callable[[CertificateAuthority], object], problem: str
) -> None:
    """It would start, and refuse everybody who comes, each in the words of TLS."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 90)
    expire(CertificateAuthority(tmp_path, now=datetime.now(UTC) - timedelta(days=91)))
    with pytest.raises(ExpiredError, match=problem):
        Broker.start(secured=tmp_path)


@pytest.mark.mosquitto
def test_an_expired_authority_is_told_before_the_broker_starts(tmp_path: Path) -> None:
    """The same for what signed all of it."""
    CertificateAuthority(tmp_path, now=datetime.now(UTC) - timedelta(days=AUTHORITY_DAYS + 1)).broker(["127.0.0.1"], 90)
    with pytest.raises(ExpiredError, match=r"ca\.crt expired on .*: make another authority in a new folder"):
        Broker.start(secured=tmp_path)


@pytest.mark.mosquitto
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_whose_owner_has_no_name_here_is_told(tmp_path: Path) -> None:
    """Certificates that came from another machine belong to a number; Mosquitto wants a name."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    os.chown(tmp_path / "server.key", 54321, -1)
    with pytest.raises(BrokerError, match=r"server\.key belongs to user 54321, who has no name .*'chown mosquitto "):
        Broker.start(secured=tmp_path)


@pytest.mark.mosquitto
def test_a_file_that_the_broker_cannot_use_is_named(tmp_path: Path) -> None:
    """The last line of its log names a function of OpenSSL."""
    CertificateAuthority(tmp_path).broker(["127.0.0.1"], 1)
    (tmp_path / "ca.crt").write_text("x")
    with pytest.raises(BrokerError, match=r"Error: Unable to load CA certificates.*ca\.crt.* / .*OpenSSL Error\[0\]"):
        Broker.start(secured=tmp_path)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"\x10\x17\0\4MQTT\5\6\0\x0f\0\0\1c\0\0\1t\0\1x", id="MQTT 5 with a will"),
        pytest.param(b"\x16\3\1\2\0\1\0\1\xfc\3\3", id="TLS"),
    ],
)
def test_the_embedded_broker_hangs_up_on_what_it_does_not_speak(embedded_url: str, first: bytes) -> None:
    """In silence every node would wait for seconds, twice, before it spoke 3.1.1."""
    address = Address.parse(embedded_url)
    with socket.create_connection((address.host, address.port), timeout=60) as client:
        client.sendall(first)
        assert client.recv(1) == b""


def test_the_embedded_broker_cannot_be_secured(tmp_path: Path) -> None:
    """It knows neither certificates of clients nor an ACL: it may not pass for one that does."""
    with pytest.raises(BrokerError, match="the embedded broker knows no roles"):
        Broker.start(kind="embedded", secured=tmp_path)


def test_refuses_an_address_that_is_not_here() -> None:
    """A wrong --host must be told as that, not as a broker that would not start."""
    with pytest.raises(BrokerError, match=r"cannot listen on 192\.0\.2\.1"):
        Broker.start(host="192.0.2.1", open_to_network=True)


@pytest.mark.mosquitto
def test_tells_what_a_refused_configuration_said(tmp_path: Path) -> None:
    """Mosquitto's own words name the line that is wrong."""
    config = tmp_path / "wrong.conf"
    config.write_text(f"listener {broker_module._bind('127.0.0.1', 0)} 127.0.0.1\nno_such_setting 1\n")
    with pytest.raises(BrokerError, match=r"ended at once: .*no_such_setting|ended at once: .*wrong.conf"):
        Broker.start(config=config)


def test_a_configuration_needs_a_listener(tmp_path: Path) -> None:
    """Without one there is no address to wait for, nor to tell the nodes."""
    config = tmp_path / "empty.conf"
    config.write_text("# listener 1883\n")
    with pytest.raises(BrokerError, match=r"empty.conf has no listener: add a line"):
        first_listener(config)


def test_names_the_extra_that_brings_the_embedded_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither broker is there, the message must be the one command that mends it."""
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)

    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(broker_module, "version", missing)
    with pytest.raises(MissingExtraError, match=r"skylane\[broker\]"):
        Broker.start()


def test_notices_a_broker_that_dies(mosquitto_broker: Broker) -> None:
    """`skylane broker` must not sit there as if it still served."""
    assert mosquitto_broker.wait(0) is None
    os.kill(mosquitto_broker.pid, signal.SIGKILL)
    assert mosquitto_broker.wait(60) == -signal.SIGKILL


def test_command_serves_until_it_is_told_to_end() -> None:
    """SIGTERM is how systemd, containers and `make` end it: cleanly, with exit code 0."""
    command = [sys.executable, "-m", "skylane", "broker", "--port", "0", "--kind", "embedded"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        assert greeting.startswith("broker: the embedded amqtt ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_command_tells_a_taken_port_in_one_line() -> None:
    """What bad input gets: one line and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        command = [sys.executable, "-m", "skylane", "broker", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"skylane: port {port} of 127.0.0.1 is in use: stop what listens there, or choose another with --port\n"
    )
