"""The broker configurations that ship, loaded by the real Mosquitto."""

import getpass
import queue
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from shared.broker import Broker
from shared.fields import MAX_MESSAGE_BYTES
from shared.mosquitto import DEVELOPMENT_SETTINGS

CONFIGS = Path(__file__).parents[1] / "mosquitto"
IDENTITIES = ("car-1", "car-2", "worker", "operator")
NOT_AUTHORIZED = 0x87
TIMEOUT_S = 10.0

# Every topic of the protocol, and who may write it.
WRITERS = {
    "frames/road-small/car-1/left": {"car-1"},
    "retries/cloud-1/road-small/car-1/left": {"car-1"},
    "probes/cloud-1/car-1": {"car-1"},
    "status/vehicle/car-1": {"car-1"},
    "masks/car-1/left": {"worker"},
    "echoes/car-1/cloud-1": {"worker"},
    "status/worker/cloud-1": {"worker"},
    "control/cloud-1/unload": {"operator"},
    "replies/operator/nonce": {"worker"},
}
# The same topics, and who may read them.
READERS = {
    "frames/road-small/car-1/left": {"worker"},
    "retries/cloud-1/road-small/car-1/left": {"worker"},
    "probes/cloud-1/car-1": {"worker"},
    "status/vehicle/car-1": {"car-1", "operator"},
    "masks/car-1/left": {"car-1"},
    "echoes/car-1/cloud-1": {"car-1"},
    "status/worker/cloud-1": {"car-1", "car-2", "worker", "operator"},
    "control/cloud-1/unload": {"worker"},
    "replies/operator/nonce": {"operator"},
}


class Authority:
    """A certificate authority for one test run, and what it signs, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Skylane test authority")
        self._write("ca", self._certificate(self._name, self._key, authority=True), self._key)

    @property
    def file(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.crt"

    def issue(self, common_name: str) -> tuple[Path, Path]:
        """Make a key and a certificate for `common_name`; their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(common_name, self._certificate(_name(common_name), key, authority=False), key)

    def _certificate(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        local = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(local, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, stem: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        files = self.folder / f"{stem}.crt", self.folder / f"{stem}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class Client:
    """An MQTT 5 client that waits for every answer: a connection, an acknowledgement, a message."""

    def __init__(self, broker: Broker, authority: Authority, identity: str) -> None:
        self._paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        certificate, key = authority.issue(identity)
        self._paho.tls_set(str(authority.file), str(certificate), str(key))
        self._answers: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[str] = queue.Queue()
        self._paho.on_connect = self._connected
        self._paho.on_publish = self._published
        self._paho.on_subscribe = self._subscribed
        self._paho.on_message = self._arrived
        self._paho.connect(broker.listener.host, broker.listener.port)
        self._paho.loop_start()

    def __enter__(self) -> Self:
        assert self._answers.get(timeout=TIMEOUT_S) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self._paho.disconnect()
        self._paho.loop_stop()

    def publish(self, topic: str) -> int:
        """Publish at QoS 1; the reason code of the acknowledgement."""
        self._paho.publish(f"skylane/v1/{topic}", b"x", qos=1)
        return self._answers.get(timeout=TIMEOUT_S)

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe, and return once that is acknowledged."""
        self._paho.subscribe(topic_filter, qos=1)
        self._answers.get(timeout=TIMEOUT_S)

    def _connected(self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _: object) -> None:
        self._answers.put(code.value)

    def _published(
        self, _client: paho.Client, _data: object, _id: int, code: ReasonCode, _properties: Properties
    ) -> None:
        self._answers.put(code.value)

    def _subscribed(self, _client: paho.Client, _data: object, _id: int, codes: list[ReasonCode], _: object) -> None:
        self._answers.put(codes[0].value)

    def _arrived(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.put(message.topic.removeprefix("skylane/v1/"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One authority for the broker and for every client."""
    return Authority(tmp_path_factory.mktemp("certificates"))


def load(config: str, folder: Path, certificates: Path) -> Path:
    """Write a configuration that ships to `folder`, with this machine's paths and a free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    text = (CONFIGS / config).read_text(encoding="utf-8")
    text = re.sub(r"^listener \d+$", f"listener {port} 127.0.0.1", text, flags=re.MULTILINE)
    text = text.replace("/mosquitto/certs", str(certificates)).replace("/mosquitto/config", str(CONFIGS))
    path = folder / config
    path.write_text(f"{text}\nuser {getpass.getuser()}\n", encoding="utf-8")  # Whoever may read the test's keys.
    return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    """Mosquitto with secured.conf and the ACL that ships."""
    authority.issue("server")
    config = load("secured.conf", tmp_path_factory.mktemp("secured"), authority.folder)
    with Broker.start(config=config) as broker:
        yield broker


def settings(config: str) -> list[str]:
    """The lines of a configuration that say something."""
    lines = (CONFIGS / config).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_skylane_broker_runs_the_development_settings() -> None:
    """What `skylane broker` writes and what the container mounts must not drift apart."""
    assert settings("development.conf") == ["listener 1883", *DEVELOPMENT_SETTINGS]


def test_secured_settings_keep_what_was_measured() -> None:
    """Security may not cost the delays and the lost wills that the development settings avoid."""
    assert set(DEVELOPMENT_SETTINGS) - {"allow_anonymous true"} <= set(settings("secured.conf"))


def test_the_largest_message_is_the_protocols() -> None:
    """A packet over the broker's limit makes a publisher at QoS 1 reconnect for ever."""
    assert f"message_size_limit {MAX_MESSAGE_BYTES}" in DEVELOPMENT_SETTINGS


@pytest.mark.mosquitto
def test_development_configuration_lets_anyone_in(tmp_path: Path) -> None:
    """The containers mount this file: it must load as it is, and need no password."""
    with Broker.start(config=load("development.conf", tmp_path, tmp_path)) as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.connect(broker.listener.host, broker.listener.port)
        assert client.publish("skylane/v1/anything", b"x").rc == 0
        client.disconnect()


@pytest.mark.mosquitto
def test_secured_broker_refuses_a_client_without_certificate(secured: Broker, authority: Authority) -> None:
    """Anonymous is not an identity: no certificate, no connection."""
    assert secured.url.startswith("mqtts://")
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        pytest.raises((ssl.SSLError, ConnectionResetError), match=r"(?i)certificate|reset"),
        socket.create_connection((secured.listener.host, secured.listener.port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.recv(1)  # TLS 1.3 tells a client only now that its certificate is missing.


@pytest.mark.mosquitto
def test_secured_broker_refuses_a_certificate_of_another_authority(
    secured: Broker, authority: Authority, tmp_path: Path
) -> None:
    """A certificate proves an identity only when our authority signed it."""
    certificate, key = Authority(tmp_path).issue("car-1")
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(certificate, key)
    with (
        pytest.raises((ssl.SSLError, ConnectionResetError)),
        socket.create_connection((secured.listener.host, secured.listener.port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.recv(1)


@pytest.mark.mosquitto
def test_secured_broker_refuses_old_tls(secured: Broker, authority: Authority) -> None:
    """TLS 1.1 is broken, and RFC 8996 forbids it."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.set_ciphers("ALL:@SECLEVEL=0")  # Otherwise OpenSSL refuses on the client's side.
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        pytest.raises((ssl.SSLError, ConnectionResetError), match=r"(?i)version|protocol|reset"),
        socket.create_connection((secured.listener.host, secured.listener.port), timeout=TIMEOUT_S) as plain,
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.mosquitto
@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_role_writes_only_its_topics(secured: Broker, authority: Authority, identity: str) -> None:
    """A vehicle that could send another's frames, or a worker's masks, would break every promise behind them."""
    with Client(secured, authority, identity) as client:
        codes = {topic: client.publish(topic) for topic in WRITERS}
    assert {topic for topic, code in codes.items() if code != NOT_AUTHORIZED} == {
        topic for topic, writers in WRITERS.items() if identity in writers
    }


@pytest.mark.mosquitto
@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_role_reads_only_its_topics(secured: Broker, authority: Authority, identity: str) -> None:
    """A subscription to everything is granted; what it brings must be the reader's own."""
    with Client(secured, authority, identity) as reader:
        reader.subscribe("skylane/v1/#")
        for topic, writers in WRITERS.items():
            with Client(secured, authority, min(writers)) as writer:
                assert writer.publish(topic) != NOT_AUTHORIZED
        expected = {topic for topic, readers in READERS.items() if identity in readers}
        received = {reader.messages.get(timeout=TIMEOUT_S) for _ in expected}
        # Each message was acknowledged before the next: what was withheld cannot be on its way still.
        reader.subscribe("skylane/v1/#")
        assert received == expected
        assert reader.messages.empty()


@pytest.mark.mosquitto
def test_workers_share_frames_under_the_acl(secured: Broker, authority: Authority) -> None:
    """Workers subscribe as a group; the ACL must let a shared subscription through."""
    with Client(secured, authority, "worker") as worker, Client(secured, authority, "car-1") as vehicle:
        worker.subscribe("$share/skylane/skylane/v1/frames/road-small/+/+")
        vehicle.publish("frames/road-small/car-2/left")
        vehicle.publish("frames/road-small/car-1/left")
        assert worker.messages.get(timeout=TIMEOUT_S) == "frames/road-small/car-1/left"
