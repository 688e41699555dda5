"""Who distrusts whom, and why: a real Mosquitto that wants certificates, and those that it or we refuse."""

import queue
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives import serialization

from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from shared.mqtt.first_connect import BrokerRefusedError, BrokerUnreachableError
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.settings import MqttSettings
from shared.network.address import Address, Certificates
from shared.network.tls import CertificateError, create_tls_context
from tests.conftest import need_mosquitto

WAIT_S = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Whom the broker believes; it has made a certificate for the broker and one for car-1."""
    authority = CertificateAuthority(tmp_path_factory.mktemp("tls") / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, "car-1", 1)
    return authority


@pytest.fixture(scope="module")
def secured(authority: CertificateAuthority) -> Iterator[Broker]:
    """Mosquitto with the secured settings."""
    need_mosquitto()
    with Broker.start(secured=authority.folder) as broker:
        yield broker


def _bus(
    url: str,
    folder: Path,
    name: str | None,
    *,
    authority: Path | None = None,
    timeout_s: float = WAIT_S,
    **options: Any,
) -> MqttBus:
    pair = (str(folder / f"{name}.crt"), str(folder / f"{name}.key")) if name else (None, None)
    certificates = Certificates(str(authority or folder / "ca.crt"), *pair)
    client_id = f"test-{uuid4().hex[:12]}"
    return MqttBus(Address.parse(url), client_id, certificates=certificates, connect_timeout_s=timeout_s, **options)


def _beside(authority: CertificateAuthority, folder: Path, name: str, then: datetime, days: int) -> Path:
    """A copy of the authority's folder, with a certificate that it made at another time."""
    shutil.copytree(authority.folder, folder)
    CertificateAuthority(folder, now=then).node(Role.VEHICLE, name, days)
    return folder


def test_a_certificate_of_the_brokers_authority_is_let_in(secured: Broker, authority: CertificateAuthority) -> None:
    """What the refusals stand beside."""
    with _bus(secured.url, authority.folder, "car-1") as bus:
        assert bus.is_connected


def test_no_certificate_is_told_with_the_flags_that_bring_one(secured: Broker, authority: CertificateAuthority) -> None:
    """With TLS 1.3 the broker only hangs up, after all seemed well: nobody would think of certificates."""
    with pytest.raises(BrokerRefusedError, match=r"wants a certificate: .*--certs, or --tls-cert and --tls-key"):
        _bus(secured.url, authority.folder, None)


def test_a_certificate_of_another_authority_is_told(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Two deployments, and the wrong folder."""
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 1)
    with pytest.raises(BrokerRefusedError, match=r"car-1\.crt: it is not signed by an authority the broker knows"):
        _bus(secured.url, other.folder, "car-1", authority=authority.certificate_file)


def test_a_certificate_that_has_expired_is_told(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """They are short-lived: this is the one that everybody meets."""
    old = _beside(authority, tmp_path / "old", "old", datetime.now(UTC) - timedelta(days=10), 5)
    with pytest.raises(BrokerRefusedError, match=r"old\.crt: it has expired: renew it"):
        _bus(secured.url, old, "old")


def test_a_certificate_that_was_revoked_is_told(authority: CertificateAuthority, tmp_path: Path) -> None:
    """A stolen vehicle's must open nothing, and whoever holds it by mistake must know why."""
    need_mosquitto()
    folder = tmp_path / "certs"
    shutil.copytree(authority.folder, folder)
    own = CertificateAuthority(folder)
    own.node(Role.VEHICLE, "stolen", 1)
    shutil.copytree(folder, tmp_path / "kept")
    own.revoke("stolen")
    with (
        Broker.start(secured=folder) as broker,
        pytest.raises(BrokerRefusedError, match=r"stolen\.crt: it was revoked"),
    ):
        _bus(broker.url, tmp_path / "kept", "stolen")


def test_the_brokers_own_certificate_is_none_for_a_client(secured: Broker, authority: CertificateAuthority) -> None:
    """Whoever breaks into the broker must not become a vehicle."""
    with pytest.raises(BrokerRefusedError, match=r"server\.crt: it is not one for a client"):
        _bus(secured.url, authority.folder, "server")


def test_a_broker_of_an_authority_that_we_do_not_know_is_told(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """It may be anybody who listens there."""
    other = CertificateAuthority(tmp_path / "other")
    with pytest.raises(BrokerRefusedError, match=r"is not signed by an authority that is trusted here: .*--tls-ca"):
        _bus(secured.url, authority.folder, "car-1", authority=other.certificate_file)


def test_a_broker_under_another_name_is_told(secured: Broker, authority: CertificateAuthority) -> None:
    """The certificate is for an address, and the vehicle was told a name."""
    url = secured.url.replace("127.0.0.1", "localhost")
    with pytest.raises(BrokerRefusedError, match=r"is not for 'localhost': connect by a name that stands in it"):
        _bus(url, authority.folder, "car-1")


def test_a_plain_broker_where_tls_was_asked_for_is_told(mosquitto_url: str, authority: CertificateAuthority) -> None:
    """One letter in an address. It may also be a broker that is just going: there is no knowing."""
    with pytest.raises(BrokerUnreachableError, match=r"hung up on a handshake of TLS: .* write mqtt://"):
        _bus(mosquitto_url.replace("mqtt://", "mqtts://"), authority.folder, "car-1", timeout_s=0.3)


def test_what_answers_tls_in_plain_is_told_at_once(authority: CertificateAuthority) -> None:
    """A web server, say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BrokerRefusedError, match=r"does not speak TLS on that port: write mqtt://"):
            _bus(f"mqtts://127.0.0.1:{listener.getsockname()[1]}", authority.folder, "car-1")
        thread.join()


def test_a_broker_with_tls_where_none_was_asked_for_is_told(secured: Broker) -> None:
    """The same letter."""
    with pytest.raises(BrokerRefusedError, match=r"speaks TLS on that port: write mqtts://"):
        MqttBus(Address.parse(secured.url.replace("mqtts://", "mqtt://")), "test-plain", connect_timeout_s=WAIT_S)


def test_a_broker_that_is_not_there_is_no_matter_of_certificates(authority: CertificateAuthority) -> None:
    """To look for the fault in the certificates would take a day."""
    with pytest.raises(BrokerUnreachableError, match="refused"):
        MqttBus(
            Address.parse("mqtts://127.0.0.1:1"),
            "test-gone",
            certificates=Certificates(str(authority.certificate_file)),
            connect_timeout_s=0.2,
        )


def test_a_connection_with_tls_is_made_anew_when_it_is_cut(secured: Broker, authority: CertificateAuthority) -> None:
    """A dead link is cut by another thread than the one that reads it, and TLS keeps a state of its own between them."""
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    with _bus(secured.url, authority.folder, "car-1", on_connected=lambda: connected.put(None)) as bus:
        for _ in range(3):
            connected.get(timeout=WAIT_S)
            bus._client.cut()
        connected.get(timeout=WAIT_S)


def test_a_certificate_may_be_renewed_under_a_node_that_runs(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """They are short-lived, and a worker is not. One that no longer holds is told, and not tried in silence."""
    for name in ("ca.crt", "car-1.crt", "car-1.key"):
        shutil.copy(authority.folder / name, tmp_path)
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 1)
    connected: queue.SimpleQueue[None] = queue.SimpleQueue()
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with _bus(
        secured.url,
        tmp_path,
        "car-1",
        on_connected=lambda: connected.put(None),
        on_waiting=told.put,
        times=MqttSettings(away_s=0.0),
    ) as bus:
        connected.get(timeout=WAIT_S)
        for name in ("car-1.crt", "car-1.key"):
            shutil.copy(other.folder / name, tmp_path)
        bus._client.cut()
        assert "not signed by an authority the broker knows" in told.get(timeout=WAIT_S)
        for name in ("car-1.crt", "car-1.key"):
            shutil.copy(authority.folder / name, tmp_path)
        connected.get(timeout=WAIT_S)


ADDRESS = Address("broker", 8883, tls=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"certificate": "no.pem"}, r"no\.pem cannot be read: No such file"),
        ({"key": "no.pem"}, r"no\.pem cannot be read: No such file"),
        ({"authority": "no.pem"}, r"the authority .*no\.pem cannot be read: No such file"),
        ({"authority": "text.pem"}, r"the authority .*text\.pem holds no certificate in PEM"),
        ({"certificate": "text.pem"}, r"text\.pem is no certificate in PEM"),
        ({"key": "text.pem"}, r"text\.pem no key"),
        ({"key": "car-2.key"}, r"car-2\.key does not belong to the certificate .*car-1\.crt"),
        ({"key": None}, r"car-1\.crt holds no certificate with its key in PEM: give the key with --tls-key"),
        ({"certificate": None}, r"car-1\.key has no certificate beside it: give it with --tls-cert"),
        ({"key": "locked.key"}, r"locked\.key is locked by a password"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    authority: CertificateAuthority, tmp_path: Path, change: dict[str, str | None], reason: str
) -> None:
    """OpenSSL says "[SSL] PEM lib (_ssl.c:4149)" to all of these."""
    folder = tmp_path / "certs"
    shutil.copytree(authority.folder, folder)
    CertificateAuthority(folder).node(Role.VEHICLE, "car-2", 1)
    (folder / "text.pem").write_text("no certificate")
    key = serialization.load_pem_private_key((folder / "car-1.key").read_bytes(), None)
    lock = serialization.BestAvailableEncryption(b"secret")
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / "locked.key").write_bytes(key.private_bytes(*formats, lock))
    names = {"authority": "ca.crt", "certificate": "car-1.crt", "key": "car-1.key"} | change
    files = {part: str(folder / name) if name else None for part, name in names.items()}
    with pytest.raises(CertificateError, match=reason):
        create_tls_context(ADDRESS, Certificates(**files))


def test_what_we_connect_with_checks_the_broker(authority: CertificateAuthority) -> None:
    """A context that does not would give every frame to whoever listens."""
    for certificates in (None, Certificates(str(authority.certificate_file))):
        context = create_tls_context(ADDRESS, certificates)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
