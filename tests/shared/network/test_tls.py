"""Failed and successful TLS connections to a real Mosquitto that requires certificates."""

import queue
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from shared.errors import SkylaneError
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import MqttSettings
from shared.network.address import Address, Certificates
from shared.network.tls import CertificateError, create_tls_context
from tests.conftest import need_mosquitto
from tests.support.mqtt_bus import WAIT_S, Events, connect


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The broker's authority, with certificates for the broker and for car-1."""
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
    settings: MqttSettings = MqttSettings(connect_timeout_s=WAIT_S),  # noqa: B008 - frozen.
    **options: Any,
) -> MqttBus:
    pair = (str(folder / f"{name}.crt"), str(folder / f"{name}.key")) if name else (None, None)
    certificates = Certificates(str(authority or folder / "ca.crt"), *pair)
    return connect(url, settings, certificates=certificates, **options)


def test_a_valid_certificate_is_accepted(secured: Broker, authority: CertificateAuthority) -> None:
    """The refusals below are compared with this."""
    with _bus(secured.url, authority.folder, "car-1") as bus:
        assert bus.is_connected


def _of_another_deployment(_: CertificateAuthority, folder: Path) -> tuple[Path, str]:
    other = CertificateAuthority(folder)
    other.node(Role.VEHICLE, "car-1", 1)
    return other.folder, "car-1"


def _expired(authority: CertificateAuthority, folder: Path) -> tuple[Path, str]:
    shutil.copytree(authority.folder, folder)
    CertificateAuthority(folder, now=datetime.now(UTC) - timedelta(days=10)).node(Role.VEHICLE, "old", 5)
    return folder, "old"


_REFUSED: dict[str, tuple[Callable[[CertificateAuthority, Path], tuple[Path, str | None]], str]] = {
    "no certificate": (
        lambda authority, _: (authority.folder, None), r"requires a certificate: .*--certs, or --tls-cert and --tls-key"
    ),
    "the broker's own": (lambda authority, _: (authority.folder, "server"), r"server\.crt: it is not a client certificate"),
    "of another authority": (
        _of_another_deployment, r"car-1\.crt: it is not signed by an authority the broker knows"
    ),
    "expired": (_expired, r"old\.crt: it has expired: renew it"),
}  # fmt: skip


@pytest.mark.parametrize("kind", _REFUSED)
def test_a_certificate_that_the_broker_refuses_is_reported(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path, kind: str
) -> None:
    """With TLS 1.3 the broker closes the connection only after the client's handshake has succeeded."""
    make, problem = _REFUSED[kind]
    folder, name = make(authority, tmp_path / "made")
    with pytest.raises(SkylaneError, match=problem):
        _bus(secured.url, folder, name, authority=authority.certificate_file)


def test_a_revoked_certificate_is_reported(authority: CertificateAuthority, tmp_path: Path) -> None:
    """A stolen vehicle must not be able to connect."""
    need_mosquitto()
    folder = tmp_path / "certs"
    shutil.copytree(authority.folder, folder)
    own = CertificateAuthority(folder)
    own.node(Role.VEHICLE, "stolen", 1)
    shutil.copytree(folder, tmp_path / "kept")
    own.revoke("stolen")
    with (
        Broker.start(secured=folder) as broker,
        pytest.raises(SkylaneError, match=r"stolen\.crt: it was revoked"),
    ):
        _bus(broker.url, tmp_path / "kept", "stolen")


def test_a_broker_of_an_unknown_authority_is_reported(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Another server may listen on that address."""
    other = CertificateAuthority(tmp_path / "other")
    with pytest.raises(SkylaneError, match=r"is not signed by an authority that is trusted here: .*--tls-ca"):
        _bus(secured.url, authority.folder, "car-1", authority=other.certificate_file)


def test_a_broker_under_another_name_is_reported(secured: Broker, authority: CertificateAuthority) -> None:
    """The certificate is for an address, but the vehicle connects by a name."""
    url = secured.url.replace("127.0.0.1", "localhost")
    with pytest.raises(SkylaneError, match=r"is not for 'localhost': connect by a name in the certificate"):
        _bus(url, authority.folder, "car-1")


def test_a_broker_without_tls_is_reported(mosquitto_url: str, authority: CertificateAuthority) -> None:
    """The URL has mqtts:// instead of mqtt://. A broker that shuts down looks the same, so the client retries."""
    url = mosquitto_url.replace("mqtt://", "mqtts://")
    with pytest.raises(SkylaneError, match=r"closed the connection during the TLS handshake: .* write mqtt://"):
        _bus(url, authority.folder, "car-1", settings=MqttSettings(connect_timeout_s=0.3))


def test_a_plain_text_reply_to_tls_is_reported_at_once(authority: CertificateAuthority) -> None:
    """The port may belong to a web server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SkylaneError, match=r"does not speak TLS on that port: write mqtt://"):
            _bus(f"mqtts://127.0.0.1:{listener.getsockname()[1]}", authority.folder, "car-1")
        thread.join()


def test_a_broker_with_unexpected_tls_is_reported(secured: Broker) -> None:
    """The URL has mqtt:// instead of mqtts://."""
    with pytest.raises(SkylaneError, match=r"speaks TLS on that port: write mqtts://"):
        connect(secured.url.replace("mqtts://", "mqtt://"), MqttSettings(connect_timeout_s=WAIT_S))


def test_a_missing_broker_is_not_blamed_on_certificates(authority: CertificateAuthority) -> None:
    """The error says that the connection was refused."""
    with pytest.raises(SkylaneError, match="refused"):
        _bus("mqtts://127.0.0.1:1", authority.folder, None, settings=MqttSettings(connect_timeout_s=0.2))


def test_an_aborted_tls_connection_is_replaced(secured: Broker, authority: CertificateAuthority) -> None:
    """The watchdog aborts it while the network thread reads, and both use one TLS session."""
    connected = Events()
    with _bus(secured.url, authority.folder, "car-1", on_connected=connected.put) as bus:
        for _ in range(3):
            connected.wait()
            bus.client.abort()
        connected.wait()


def test_certificates_are_reloaded_for_each_connection(
    secured: Broker, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """A worker outlives its certificates. A reloaded certificate that the broker refuses is reported."""
    for name in ("ca.crt", "car-1.crt", "car-1.key"):
        shutil.copy(authority.folder / name, tmp_path)
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 1)
    connected = Events()
    messages: queue.SimpleQueue[str] = queue.SimpleQueue()
    with _bus(
        secured.url,
        tmp_path,
        "car-1",
        on_connected=connected.put,
        on_waiting=messages.put,
        settings=MqttSettings(connect_timeout_s=WAIT_S, offline_notice_s=0.0),
    ) as bus:
        connected.wait()
        for name in ("car-1.crt", "car-1.key"):
            shutil.copy(other.folder / name, tmp_path)
        bus.client.abort()
        assert "not signed by an authority the broker knows" in messages.get(timeout=WAIT_S)
        for name in ("car-1.crt", "car-1.key"):
            shutil.copy(authority.folder / name, tmp_path)
        connected.wait()


ADDRESS = Address("broker", 8883, tls=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"certificate": "no.pem"}, r"no\.pem cannot be read: No such file"),
        ({"key": "no.pem"}, r"no\.pem cannot be read: No such file"),
        ({"authority": "no.pem"}, r"the authority .*no\.pem cannot be read: No such file"),
        ({"authority": "text.pem"}, r"the authority .*text\.pem holds no PEM certificate"),
        ({"certificate": "text.pem"}, r"text\.pem is not a PEM certificate"),
        ({"key": "text.pem"}, r"text\.pem is not a PEM key"),
        ({"key": "car-2.key"}, r"car-2\.key does not belong to the certificate .*car-1\.crt"),
        ({"key": None}, r"car-1\.crt does not hold both .*: give the key with --tls-key"),
        ({"certificate": None}, r"car-1\.key was given without its certificate: give it with --tls-cert"),
        ({"key": "locked.key"}, r"locked\.key is encrypted"),
    ],
)
def test_unusable_files_are_named(
    authority: CertificateAuthority, tmp_path: Path, change: dict[str, str | None], reason: str
) -> None:
    """OpenSSL reports "[SSL] PEM lib (_ssl.c:4149)" for all of these."""
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


def test_the_context_verifies_the_broker(authority: CertificateAuthority) -> None:
    """Frames must not be sent to an unknown server."""
    for certificates in (None, Certificates(str(authority.certificate_file))):
        context = create_tls_context(ADDRESS, certificates)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
