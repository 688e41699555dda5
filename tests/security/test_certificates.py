"""Which certificates open the door: each refusal beside one that is let in, asked of the real Mosquitto by bare TLS."""

import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from tests.support.mqtt_client import TIMEOUT_S

pytestmark = pytest.mark.mosquitto
CONNECT = bytes.fromhex("100f 0004 4d515454 05 02 000f 00 0002 7878")  # MQTT 5, clean start, client id "xx".
CONNACK = 0x20


def knock(broker: Broker, certs: Path, name: str | None, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> str:
    """Connect with a certificate and say CONNECT; "" where the broker answers, else how it refused.

    TLS 1.2 says why within its handshake; with 1.3 the word comes after it, and may be lost.
    """
    context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")  # Otherwise OpenSSL refuses on the client's side.
    context.minimum_version = context.maximum_version = version
    if name is not None:
        context.load_cert_chain(certs / f"{name}.crt", certs / f"{name}.key")
    try:
        with (
            socket.create_connection((broker.listener.host, broker.listener.port), timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=broker.listener.host) as connection,
        ):
            connection.sendall(CONNECT)
            answer = connection.recv(4)
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
        return str(error)
    return "" if answer[:1] == bytes([CONNACK]) else "it hung up"


@pytest.fixture
def folder(certs: Path, tmp_path: Path) -> Path:
    """A folder with the authority's and car-1's files, for a test to put others beside."""
    for name in ("ca.crt", "car-1.crt", "car-1.key", "server.crt", "server.key"):
        shutil.copy(certs / name, tmp_path)
    return tmp_path


def _foreign(folder: Path, authority: CertificateAuthority) -> None:  # noqa: ARG001 (as the others)
    """A certificate with the right name, of an authority that anybody can make."""
    CertificateAuthority(folder / "other").node(Role.VEHICLE, "car-1", 1)
    _bring(folder / "other", folder, "car-1")


def _self_signed(folder: Path, authority: CertificateAuthority) -> None:  # noqa: ARG001 (as the others)
    """A certificate that signed itself."""
    other = CertificateAuthority(folder / "other")
    shutil.copy(other.certificate_file, folder / "car-1.crt")
    shutil.copy(other.key_file, folder / "car-1.key")


def _expired(folder: Path, authority: CertificateAuthority) -> None:
    """A certificate that was once valid."""
    other = folder / "other"
    shutil.copytree(authority.folder, other)
    then = CertificateAuthority(other, now=datetime.now(UTC) - timedelta(days=10))
    then.node(Role.VEHICLE, "old", 5)
    _bring(other, folder, "old", "car-1")


def _of_the_broker(folder: Path, authority: CertificateAuthority) -> None:  # noqa: ARG001 (as the others)
    """The broker's own certificate: whoever breaks into it must not become a client."""
    _bring(folder, folder, "server", "car-1")


def _bring(source: Path, target: Path, name: str, as_name: str | None = None) -> None:
    for kind in ("crt", "key"):
        shutil.copy(source / f"{name}.{kind}", target / f"{as_name or name}.{kind}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_foreign, "unknown ca"),
        (_self_signed, "unknown ca"),
        (_expired, "certificate expired"),
        (_of_the_broker, "unsupported certificate"),
    ],
)
def test_a_certificate_opens_only_if_it_is_ours_and_valid(
    secured: Broker,
    authority: CertificateAuthority,
    folder: Path,
    change: Callable[[Path, CertificateAuthority], None],
    why: str,
) -> None:
    """A certificate proves an identity only when our authority signed it, for a client, and until it expires."""
    assert knock(secured, folder, "car-1") == ""
    change(folder, authority)
    assert why in knock(secured, folder, "car-1")
    assert knock(secured, folder, "car-1", version=ssl.TLSVersion.TLSv1_3) != ""


def test_no_certificate_opens_nothing(secured: Broker, certs: Path) -> None:
    """Anonymous is no identity."""
    assert "handshake failure" in knock(secured, certs, None)
    assert knock(secured, certs, None, version=ssl.TLSVersion.TLSv1_3) != ""
    assert knock(secured, certs, "car-1") == ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_new_tls_opens(secured: Broker, certs: Path, version: ssl.TLSVersion) -> None:
    """What RFC 9325 asks for."""
    assert knock(secured, certs, "car-1", version=version) == ""


def test_old_tls_opens_nothing(secured: Broker, certs: Path) -> None:
    """TLS 1.1 is broken, and RFC 8996 forbids it."""
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        refused = knock(secured, certs, "car-1", version=ssl.TLSVersion.TLSv1_1)
    assert "version" in refused.lower() or "protocol" in refused.lower()
    assert knock(secured, certs, "car-1") == ""


def test_plain_mqtt_opens_nothing(secured: Broker, certs: Path) -> None:
    """There is no second door beside the one with TLS."""
    with socket.create_connection((secured.listener.host, secured.listener.port), timeout=TIMEOUT_S) as plain:
        plain.sendall(CONNECT)
        try:
            answer = plain.recv(4)
        except ConnectionResetError:
            answer = b""
    assert answer[:1] != bytes([CONNACK])
    assert knock(secured, certs, "car-1") == ""


@pytest.fixture
def own_authority(tmp_path: Path) -> Iterator[CertificateAuthority]:
    """An authority of one test, which may revoke."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    yield authority
    shutil.rmtree(authority.folder)


def test_a_revoked_certificate_opens_nothing_after_a_restart(
    own_authority: CertificateAuthority, tmp_path: Path
) -> None:
    """A stolen car's certificate would open for its ninety days; the others stay as they were."""
    for name in ("car-1", "car-2"):
        own_authority.node(Role.VEHICLE, name, 1)
        _bring(own_authority.folder, tmp_path, name)
    shutil.copy(own_authority.certificate_file, tmp_path)
    with Broker.start(secured=own_authority.folder) as broker:
        assert knock(broker, tmp_path, "car-1") == ""
    own_authority.revoke("car-1")
    with Broker.start(secured=own_authority.folder) as broker:
        assert "revoked" in knock(broker, tmp_path, "car-1")
        assert knock(broker, tmp_path, "car-2") == ""
