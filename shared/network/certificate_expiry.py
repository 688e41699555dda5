"""Certificates and revocation lists that have expired: found before a server starts that nobody would believe."""

from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

from shared import clock
from shared.errors import MissingExtraError, SkylaneError


class ExpiredError(SkylaneError):
    """A certificate or a revocation list has expired."""


def check_not_expired(certificate: Path, cure: str) -> None:
    """Refuse a PEM file of which a certificate has expired; `cure`: what to do about it.

    What is not a certificate at all is left to the server, whose library names the fault.

    Raises:
        ExpiredError: with the date.
        MissingExtraError: `cryptography` is not installed.
    """
    x509 = _x509()
    try:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError):
        return
    for each in chain:
        _refuse(certificate, each.not_valid_after_utc, cure)


def check_crl_not_expired(revoked: Path, cure: str) -> None:
    """The same for a list of revoked certificates: a broker that has an expired one refuses everybody."""
    x509 = _x509()
    try:
        expires = x509.load_pem_x509_crl(revoked.read_bytes()).next_update_utc
    except (OSError, ValueError):
        return
    if expires is not None:
        _refuse(revoked, expires, cure)


def _x509() -> ModuleType:
    try:
        return import_module("cryptography.x509")
    except ModuleNotFoundError as error:
        raise MissingExtraError("a server with certificates", error.name or "cryptography", "broker") from error


def _refuse(file: Path, expires: datetime, cure: str) -> None:
    if expires <= datetime.fromtimestamp(clock.now_ns() / 1e9, UTC):
        raise ExpiredError(f"{file} expired on {expires:%Y-%m-%d}: {cure}")
