"""TLS connections to a broker: creates contexts, explains failed handshakes, and finds expired certificates."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path

from shared import clock
from shared.errors import MissingExtraError, SkylaneError
from shared.files import check_file, open_file, read_file
from shared.network.address import Address, Certificates

SOON_DAYS = 14  # A certificate that is valid for less needs a look.
_PROBE_TIMEOUT_S = 3.0


class ProblemKind(StrEnum):
    """The problem that prevents a connection, as seen by one side."""

    UNREACHABLE = "unreachable"  # Nothing listens there, or the connection breaks.
    NO_REPLY = "no reply"  # It accepts the TCP connection and says nothing.
    NEEDS_TLS = "needs TLS"  # It speaks TLS on that port.
    HAS_NO_TLS = "has no TLS"
    UNTRUSTED = "untrusted"  # This node does not trust the broker's certificate.
    OWN_CERTIFICATE = "own certificate"  # The broker does not accept this node's certificate, or gets none.
    EXPIRED_BY_BROKER = "expired by the broker"  # The broker says that this node's certificate has expired.
    LOGIN = "login"  # The broker refuses the user, the password or the name.
    LACKS_FEATURE = "lacks a feature"  # The broker is set up without something that Skylane requires.


class ConnectionProblemError(SkylaneError):
    """A connection to a broker is impossible; the message is the cause and the remedy."""

    def __init__(self, kind: ProblemKind, cause: str, remedy: str) -> None:
        self.kind = kind
        self.cause = cause
        super().__init__(f"{cause}: {remedy}")


class CertificateError(SkylaneError):
    """A certificate, a key or a certificate authority cannot be used.

    `is_authority`: it is the authority's certificate.
    """

    def __init__(self, message: str, *, is_authority: bool = False) -> None:
        self.is_authority = is_authority
        super().__init__(message)


def create_tls_context(address: Address, certificates: Certificates | None) -> ssl.SSLContext:
    """Returns a context for connections to `address`: TLS 1.2 or later, host name checked.

    Without a certificate authority in `certificates` it trusts those of the system.

    Raises:
        CertificateError: a file cannot be read or has the wrong content; the message names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificates is None or certificates.authority is None:
        context.load_default_certs()
    load_certificates(context, address, certificates)
    return context


def load_certificates(context: ssl.SSLContext, address: Address, certificates: Certificates | None) -> None:
    """Loads the certificates into a context; a later call loads renewed files.

    Raises:
        CertificateError: a file cannot be read or has the wrong content.
    """
    if certificates is not None and certificates.authority is not None:
        _trust(context, address, certificates.authority)
    if certificates is not None and (certificates.certificate or certificates.key):
        _identify(context, address, certificates)


def probe_rejection(
    address: Address, create_context: Callable[[], ssl.SSLContext], certificates: Certificates | None
) -> ConnectionProblemError | CertificateError | None:
    """Returns why a broker rejects this client's certificate, found by a handshake; None if it has another reason.

    In TLS 1.3 the server checks the client's certificate after the client has finished, and its alert is lost if the
    client sends data meanwhile. So the probe sends nothing and waits for one byte.
    """
    try:
        context = create_context()
        with (
            socket.create_connection((address.host, address.port), timeout=_PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secured,
        ):
            secured.recv(1)
    except ssl.SSLError as error:
        return tls_problem(error, address, certificates)
    except CertificateError as error:  # The files have changed since the node started.
        return error
    except (OSError, ValueError):
        return None
    return None


def speaks_tls(address: Address) -> bool:
    """Returns whether the server at `address` answers a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # The probe sends no data.
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=_PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")
    except OSError:
        return False


def tls_problem(
    error: ssl.SSLError, address: Address, certificates: Certificates | None
) -> ConnectionProblemError | None:
    """Returns the problem of a certificate and its remedy; None if the error is not about certificates."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem, remedy = _UNTRUSTED.get(
            error.verify_code, (f"is not trusted ({error.verify_message})", _OTHER_AUTHORITY)
        )
        if error.verify_code in (NOT_YET_VALID, EXPIRED):
            problem += f" by the clock of this machine ({datetime.fromtimestamp(clock.now_ns() / 1e9, UTC):%Y-%m-%d %H:%M} UTC)"
        if error.verify_code in _OTHER_NAME:
            problem = f"is not for {address.host!r}"
        cause = f"the certificate of broker {address} {problem}"
        return ConnectionProblemError(ProblemKind.UNTRUSTED, cause, remedy)
    reason = error.reason or ""
    if reason in _NOT_TLS:
        cause = f"broker {address} does not speak TLS on that port"
        return ConnectionProblemError(ProblemKind.HAS_NO_TLS, cause, "write mqtt://, or give the port that does")
    alert = reason.partition("_ALERT_")[2]
    if alert not in _ALERTS:
        return None
    given = certificates.certificate if certificates else None
    if given is None:
        cause, remedy = f"broker {address} requires a certificate", _GIVE_CERTIFICATE
        return ConnectionProblemError(ProblemKind.OWN_CERTIFICATE, cause, remedy)
    problem, remedy = _ALERTS[alert]
    kind = ProblemKind.EXPIRED_BY_BROKER if alert == _EXPIRED_ALERT else ProblemKind.OWN_CERTIFICATE
    return ConnectionProblemError(kind, f"broker {address} refuses the certificate {given}: {problem}", remedy)


def _trust(context: ssl.SSLContext, address: Address, authority: str) -> None:
    try:
        check_file(Path(authority))
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        problem = f"the authority {authority} holds no PEM certificate"
        raise _unusable(address, problem, is_authority=True) from error
    except OSError as error:
        problem = f"the authority {authority} cannot be read: {error.strerror}"
        raise _unusable(address, problem, is_authority=True) from error


def _identify(context: ssl.SSLContext, address: Address, certificates: Certificates) -> None:
    certificate, key = certificates.certificate, certificates.key

    def refuse_password() -> bytes:
        raise _unusable(address, f"the key {key or certificate} is encrypted: give one without a password")

    if certificate is None:
        raise _unusable(address, f"the key {key} was given without its certificate: give it with --tls-cert")
    for path in (certificate, key):
        _check_readable(path, address)
    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"the key {key} does not belong to the certificate {certificate}"
        elif key is None:
            problem = f"{certificate} does not hold both a certificate and its key in PEM: give the key with --tls-key"
        else:
            problem = f"{certificate} is not a PEM certificate, or {key} is not a PEM key"
        raise _unusable(address, problem) from error


def _check_readable(path: str | None, address: Address) -> None:
    """Names the file that cannot be read; OpenSSL's error does not."""
    if path is None:
        return
    try:
        with open_file(Path(path)):
            return
    except OSError as error:
        raise _unusable(address, f"{path} cannot be read: {error.strerror}") from error


def _unusable(address: Address, problem: str, *, is_authority: bool = False) -> CertificateError:
    return CertificateError(f"certificates for {address} cannot be used: {problem}", is_authority=is_authority)


_OTHER_AUTHORITY = "give the authority that signed it with --certs or --tls-ca"
_RENEW = "ask the operator of the broker to renew it"
# OpenSSL's X509_V_ERR_*, openssl-verification-options(1).
NOT_YET_VALID, EXPIRED = 9, 10
_UNTRUSTED = {
    NOT_YET_VALID: ("is not valid yet", "check this clock and that of the machine that made it"),
    EXPIRED: ("has expired", f"check this clock, or {_RENEW}"),
    18: ("is self-signed", _OTHER_AUTHORITY),
    19: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    20: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    21: ("is not signed by an authority that is trusted here", _OTHER_AUTHORITY),
    26: ("is not a server certificate", _RENEW),
    62: ("is for another name", "connect by a name in the certificate, or have it issued for this one"),
    64: ("is for another address", "connect by a name in the certificate, or have it issued for this one"),
}
_OTHER_NAME = (62, 64)
# TLS alerts as OpenSSL spells them (RFC 8446, section 6.2), and what each says about a client's certificate.
_GIVE_CERTIFICATE = "give this node's with --certs, or --tls-cert and --tls-key"
_ISSUE = "have one issued by the broker's authority (skylane broker certs)"
_EXPIRED_ALERT = "CERTIFICATE_EXPIRED"
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("it was sent without its chain", _ISSUE),
    "HANDSHAKE_FAILURE": ("the broker does not support its type", _ISSUE),
    "BAD_CERTIFICATE": ("it is damaged", _ISSUE),
    "UNSUPPORTED_CERTIFICATE": ("it is not a client certificate", _ISSUE),
    "CERTIFICATE_REVOKED": ("it was revoked", _ISSUE),
    _EXPIRED_ALERT: (
        "it has expired",
        "renew it (skylane broker certs --again), or the broker's revocation list (--renew-list)",
    ),
    "CERTIFICATE_UNKNOWN": ("the broker does not accept it", _ISSUE),
    "UNKNOWN_CA": ("it is not signed by an authority the broker knows", _ISSUE),
    "DECRYPT_ERROR": ("its key does not match it", _ISSUE),
}
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)  # OpenSSL's errors for a reply that is not TLS.


def server_certificate_expiry(address: Address, certificates: Certificates | None, timeout_s: float) -> float:
    """Returns when the certificate of a server expires, in seconds since 1970, from a separate handshake.

    Raises:
        OSError: the server cannot be reached, or the handshake fails (`ssl.SSLError`).
        SkylaneError: see `create_tls_context`.
    """
    context = create_tls_context(address, certificates)
    with (
        socket.create_connection((address.host, address.port), timeout=timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as secured,
    ):
        return ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"]))


def accepts_certificate(address: Address, certificates: Certificates, timeout_s: float) -> bool:
    """Returns whether a server accepts this client's certificate, without checking the server's. Sends no data."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificates.certificate is not None:
        _identify(context, address, certificates)
    with suppress(OSError), socket.create_connection((address.host, address.port), timeout=timeout_s) as plain:
        try:
            with context.wrap_socket(plain) as secured:
                secured.recv(1)  # The alert of a server that rejects it.
        except TimeoutError:
            return True
    return False


def certificate_holder(file: Path) -> str:
    """Returns the holder of a certificate, such as "vehicle car-1", or its common name; empty if it cannot be read."""
    try:
        x509 = import_module("cryptography.x509")
        certificate = x509.load_pem_x509_certificate(read_file(file))
        names = [str(name.rfc4514_string()) for name in certificate.subject.rdns]
        with suppress(x509.ExtensionNotFound):
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = alternatives.get_values_for_type(x509.UniformResourceIdentifier) + names
    except (ModuleNotFoundError, OSError, ValueError):
        return ""
    return names[0].removeprefix("skylane:").removeprefix("CN=").replace("/", " ") if names else ""


def certificate_expiries(file: Path, *, is_revocation_list: bool = False) -> list[datetime]:
    """Returns when each certificate of a PEM file, or a revocation list, expires; nothing for another file.

    Raises:
        MissingExtraError: `cryptography` is not installed.
    """
    try:
        x509 = import_module("cryptography.x509")
    except ModuleNotFoundError as error:
        raise MissingExtraError("a server with certificates", error.name or "cryptography", "broker") from error
    try:
        data = read_file(file)
        if is_revocation_list:
            expiries = [x509.load_pem_x509_crl(data).next_update_utc]
        else:
            expiries = [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(data)]
    except (OSError, ValueError):
        return []
    return [expires for expires in expiries if expires is not None]


def check_not_expired(file: Path, remedy: str, *, is_revocation_list: bool = False) -> None:
    """Checks every certificate of a PEM file, or a revocation list: a broker with an expired one refuses every client.

    `remedy` ends the error message. A file that holds no certificate passes: the server's TLS library reports it better.

    Raises:
        SkylaneError: a certificate or the list has expired; the message has the date.
        MissingExtraError: `cryptography` is not installed.
    """
    for expires in certificate_expiries(file, is_revocation_list=is_revocation_list):
        if expires <= datetime.fromtimestamp(clock.now_ns() / 1e9, UTC):
            raise SkylaneError(f"{file} expired on {expires:%Y-%m-%d}: {remedy}")
