"""Checks for expired certificates and revocation lists before a server starts with them."""

from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

from shared import clock
from shared.errors import MissingExtraError, SkylaneError
from shared.files import read_file


class ExpiredError(SkylaneError):
    """A certificate or a revocation list has expired."""


def check_not_expired(certificate: Path, remedy: str) -> None:
    """Checks every certificate of a PEM file. `remedy` ends the error message.

    A file that holds no certificate passes: the server's TLS library reports it better.

    Raises:
        ExpiredError: a certificate has expired; the message has the date.
        MissingExtraError: `cryptography` is not installed.
    """
    x509 = _x509()
    try:
        chain = x509.load_pem_x509_certificates(read_file(certificate))
    except (OSError, ValueError):
        return
    for each in chain:
        _check(certificate, each.not_valid_after_utc, remedy)


def check_crl_not_expired(revoked: Path, remedy: str) -> None:
    """Checks a certificate revocation list: a broker with an expired one refuses every client.

    Raises:
        ExpiredError: the list has expired.
        MissingExtraError: `cryptography` is not installed.
    """
    x509 = _x509()
    try:
        expires = x509.load_pem_x509_crl(read_file(revoked)).next_update_utc
    except (OSError, ValueError):
        return
    if expires is not None:
        _check(revoked, expires, remedy)


def _x509() -> ModuleType:
    try:
        return import_module("cryptography.x509")
    except ModuleNotFoundError as error:
        raise MissingExtraError("a server with certificates", error.name or "cryptography", "broker") from error


def _check(file: Path, expires: datetime, remedy: str) -> None:
    if expires <= datetime.fromtimestamp(clock.now_ns() / 1e9, UTC):
        raise ExpiredError(f"{file} expired on {expires:%Y-%m-%d}: {remedy}")
