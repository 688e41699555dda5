"""The TLS versions that a real Mosquitto accepts, and what it answers to clients without a certificate or without TLS."""

import socket
import ssl
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from tests.support.mqtt_client import TIMEOUT_S

pytestmark = pytest.mark.mosquitto
CONNECT = bytes.fromhex("100f 0004 4d515454 05 02 000f 00 0002 7878")  # MQTT 5, clean start, client id "xx".
CONNACK = 0x20


def connect(broker: Broker, certs: Path, name: str | None, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> str:
    """Sends CONNECT over TLS with a certificate; returns "" if the broker responds, otherwise the error.

    TLS 1.2 reports the reason in the handshake; with TLS 1.3 it arrives later and may be lost.
    """
    context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("ALL:@SECLEVEL=0")  # Otherwise the client's OpenSSL rejects the version.
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
    return "" if answer[:1] == bytes([CONNACK]) else "connection closed"


def test_a_client_without_a_certificate_is_rejected(secured: Broker, certs: Path) -> None:
    """An anonymous client has no identity."""
    assert "handshake failure" in connect(secured, certs, None)
    assert connect(secured, certs, None, version=ssl.TLSVersion.TLSv1_3) != ""
    assert connect(secured, certs, "car-1") == ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_accepted(secured: Broker, certs: Path, version: ssl.TLSVersion) -> None:
    """RFC 9325 recommends these versions."""
    assert connect(secured, certs, "car-1", version=version) == ""


def test_older_tls_is_rejected(secured: Broker, certs: Path) -> None:
    """RFC 8996 forbids TLS 1.1."""
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        error = connect(secured, certs, "car-1", version=ssl.TLSVersion.TLSv1_1)
    assert "version" in error.lower() or "protocol" in error.lower()
    assert connect(secured, certs, "car-1") == ""


def test_plain_mqtt_is_rejected(secured: Broker, certs: Path) -> None:
    """There is no listener without TLS."""
    with socket.create_connection((secured.listener.host, secured.listener.port), timeout=TIMEOUT_S) as plain:
        plain.sendall(CONNECT)
        try:
            answer = plain.recv(4)
        except ConnectionResetError:
            answer = b""
    assert answer[:1] != bytes([CONNACK])
    assert connect(secured, certs, "car-1") == ""
