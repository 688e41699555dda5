"""TLS towards a broker: what a connection is secured with, and why one of the two sides distrusts the other."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from shared.errors import SkylaneError
from shared.network.address import Address, Certificates

_PATIENCE_S = 3.0


class CertificateError(SkylaneError):
    """A certificate, a key or an authority cannot be used."""


def create_tls_context(address: Address, certificates: Certificates | None) -> ssl.SSLContext:
    """What secures a connection to `address`: TLS 1.2 or later, the broker's name checked.

    Without an authority of its own it trusts those of the system.

    Raises:
        CertificateError: a file cannot be read or is not what it should be; names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificates is None or certificates.authority is None:
        context.load_default_certs()
    load(context, address, certificates)
    return context


def load(context: ssl.SSLContext, address: Address, certificates: Certificates | None) -> None:
    """Load the certificates from their files, again where they were renewed under a node that runs.

    Raises:
        CertificateError: as `create_tls_context`.
    """
    if certificates is not None and certificates.authority is not None:
        _trust(context, address, certificates.authority)
    if certificates is not None and (certificates.certificate or certificates.key):
        _identify(context, address, certificates)


def distrust(error: ssl.SSLCertVerificationError, address: Address) -> str:
    """Why we do not trust the broker, and what to do, in a sentence."""
    why, cure = _DISTRUSTED.get(error.verify_code, (f"is not trusted ({error.verify_message})", _OTHER_AUTHORITY))
    if error.verify_code in _OTHER_NAME:
        why = f"is not for {address.host!r}"
    return f"the certificate of broker {address} {why}: {cure}"


def refusal(address: Address, secure: Callable[[], ssl.SSLContext], certificates: Certificates | None) -> str | None:
    """Why the broker refuses us, found by a handshake of our own; None where certificates are not the reason.

    With TLS 1.3 a broker looks at our certificate when the handshake is over for us, and its word is lost where
    something was sent meanwhile. So nothing is sent here, and one byte awaited.
    """
    try:
        context = secure()
        with (
            socket.create_connection((address.host, address.port), timeout=_PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secured,
        ):
            secured.recv(1)
    except ssl.SSLError as error:
        return told(error, address, certificates)
    except CertificateError as error:  # The files were good once.
        return str(error)
    except (OSError, ValueError):
        return None
    return None


def speaks_tls(address: Address) -> bool:
    """Whether whoever listens there begins a handshake of TLS, with anyone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Nothing is said to it.
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=_PATIENCE_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")
    except OSError:
        return False


def told(error: ssl.SSLError, address: Address, certificates: Certificates | None) -> str | None:
    """What an error of TLS says of certificates, and what to do, in a sentence; None where it says nothing of them."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrust(error, address)
    reason = error.reason or ""
    if reason in _PLAIN:
        return f"broker {address} does not speak TLS on that port: write mqtt://, or give the port that does"
    alert = reason.partition("_ALERT_")[2]
    if alert not in _ALERTS:
        return None
    given = certificates.certificate if certificates else None
    if given is None:
        return f"broker {address} wants a certificate: give this node's with --certs, or --tls-cert and --tls-key"
    why, cure = _ALERTS[alert]
    return f"broker {address} refuses the certificate {given}: {why}: {cure}"


def _trust(context: ssl.SSLContext, address: Address, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise _unusable(address, f"the authority {authority} holds no certificate in PEM") from error
    except OSError as error:
        raise _unusable(address, f"the authority {authority} cannot be read: {error.strerror}") from error


def _identify(context: ssl.SSLContext, address: Address, certificates: Certificates) -> None:
    certificate, key = certificates.certificate, certificates.key

    def ask() -> bytes:
        raise _unusable(address, f"the key {key or certificate} is locked by a password: give one that is not")

    if certificate is None:
        raise _unusable(address, f"the key {key} has no certificate beside it: give it with --tls-cert")
    for path in (certificate, key):
        _check_readable(path, address)
    try:
        context.load_cert_chain(certificate, key, ask)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"the key {key} does not belong to the certificate {certificate}"
        elif key is None:
            what = f"{certificate} holds no certificate with its key in PEM: give the key with --tls-key"
        else:
            what = f"{certificate} is no certificate in PEM, or {key} no key"
        raise _unusable(address, what) from error


def _check_readable(path: str | None, address: Address) -> None:
    """An error of OpenSSL does not say which of two files it could not read."""
    if path is None:
        return
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise _unusable(address, f"{path} cannot be read: {error.strerror}") from error


def _unusable(address: Address, why: str) -> CertificateError:
    return CertificateError(f"certificates for {address} cannot be used: {why}")


_OTHER_AUTHORITY = "give the authority that signed it with --certs or --tls-ca"
_RENEW = "whoever runs the broker must renew it"
# OpenSSL's X509_V_ERR_*, openssl-verification-options(1).
_DISTRUSTED = {
    9: ("is not valid yet", "set this machine's clock, or the one that made it"),
    10: ("has expired", _RENEW),
    18: ("is signed by itself alone", _OTHER_AUTHORITY),
    19: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    20: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    21: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    26: ("is not one for a broker", _RENEW),
    62: ("is for another name", "connect by a name that stands in it, or have it made for this one"),
    64: ("is for another address", "connect by a name that stands in it, or have it made for this one"),
}
_OTHER_NAME = (62, 64)
# TLS's alerts as OpenSSL spells them (RFC 8446, section 6.2), and what each means of a client's certificate.
_ISSUE = "have one made by the broker's authority (skylane broker certs)"
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("it came without its chain", _ISSUE),
    "HANDSHAKE_FAILURE": ("it is of a kind the broker does not take", _ISSUE),
    "BAD_CERTIFICATE": ("it is damaged", _ISSUE),
    "UNSUPPORTED_CERTIFICATE": ("it is not one for a client", _ISSUE),
    "CERTIFICATE_REVOKED": ("it was revoked", _ISSUE),
    "CERTIFICATE_EXPIRED": (
        "it has expired",
        "renew it (skylane broker certs --again), or the broker's list of revoked ones (--renew-list)",
    ),
    "CERTIFICATE_UNKNOWN": ("the broker does not accept it", _ISSUE),
    "UNKNOWN_CA": ("it is not signed by an authority the broker knows", _ISSUE),
    "DECRYPT_ERROR": ("its key does not prove it", _ISSUE),
}
_PLAIN = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")  # What is no TLS, read as such.
