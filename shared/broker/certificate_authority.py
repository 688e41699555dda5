"""The certificate authority of one deployment: makes, keeps, renews and revokes what the secured broker asks for.

A folder holds all of it, in PEM: `ca.crt`, `crl.pem` (what is revoked), `server.crt` and `server.key` of the broker, and
a `<name>.crt` and `<name>.key` for every node. `authority/` inside holds what signs: `ca.key`, a copy of every certificate
that was ever signed, by which a name is revoked, and the list of what is revoked, which `crl.pem` is a copy of.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared import clock
from shared.errors import SkylaneError
from shared.messages.topics import checked

AUTHORITY_DAYS = 3650
LIST_DAYS = 90  # After which a broker that missed a later list of revoked certificates closes to all.
BROKER = "server"  # The name of the broker's files.
_SKEW = timedelta(hours=1)  # How far a node's clock may be behind ours.
_RESERVED = {"ca", "crl", BROKER}
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
_PRIVATE, _PUBLIC = 0o600, 0o644
_MEND = "bring it back, or make it --again"


class AuthorityError(SkylaneError):
    """A certificate cannot be made, kept or revoked as asked."""


class Role(StrEnum):
    """Whom a certificate is for."""

    BROKER = "broker"
    VEHICLE = "vehicle"
    WORKER = "worker"
    OPERATOR = "operator"

    def common_name(self, name: str) -> str:
        """The common name that the broker's ACL knows a node by: a vehicle's own name, the role of all others."""
        return name if self in (Role.VEHICLE, Role.BROKER) else self.value


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in the folder."""

    name: str
    role: Role
    file: Path
    expires: datetime
    is_new: bool  # False: it was there, and is kept.


class CertificateAuthority:
    """An authority in a folder; made where there is none yet."""

    def __init__(self, folder: Path, *, now: datetime | None = None) -> None:
        """`now`: when it is; a test makes certificates that have expired by it.

        Raises:
            AuthorityError: the folder cannot be written, or holds an authority that has expired or is damaged.
        """
        self.folder = folder
        self._now = (now or datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)).replace(microsecond=0)
        self._kept = folder / "authority"
        self.key_file = self._kept / "ca.key"
        self.certificate_file = folder / "ca.crt"
        self.revoked_file = folder / "crl.pem"
        self._revoked_kept = self._kept / "crl.pem"
        self.is_new = not (self.key_file.exists() or self.certificate_file.exists())
        if self.is_new:
            self._make()
        self._key, self._certificate = _pair(self.certificate_file, self.key_file, "bring back both of its files")
        if self._certificate.not_valid_after_utc <= self._now:
            raise AuthorityError(
                f"the authority {self.certificate_file} expired on {self._certificate.not_valid_after_utc:%Y-%m-%d}: "
                "make another in a new folder, and give its ca.crt to every node"
            )
        if self.is_new:
            self._write_revoked(())
        elif not self.revoked_file.exists():  # An empty one in its place would let in all that is revoked.
            _write(self.revoked_file, _pem(self._revoked()), _PUBLIC)

    @property
    def expires(self) -> datetime:
        """When nothing that it signed is believed any more."""
        return self._certificate.not_valid_after_utc

    def broker(self, hosts: Sequence[str], days: int, *, again: bool = False) -> Issued:
        """The broker's certificate, for the names and addresses that clients connect to.

        Raises:
            AuthorityError: a host is none, or there is a certificate for other hosts, or one that has expired.
        """
        names = [_host(host) for host in dict.fromkeys(hosts)]
        kept = None if again else self._current(BROKER, Role.BROKER)
        if kept is not None:
            old = set(_hosts(kept))
            if not {str(name.value) for name in names} <= old:
                raise AuthorityError(
                    f"{self._files(BROKER)[0]} is for {', '.join(sorted(old))}: to have it for {', '.join(hosts)}, "
                    "say --again"
                )
            return self._issued(BROKER, Role.BROKER, kept, is_new=False)
        return self._sign(BROKER, Role.BROKER, names, ExtendedKeyUsageOID.SERVER_AUTH, days)

    def node(self, role: Role, name: str, days: int, *, again: bool = False) -> Issued:
        """A node's certificate, in files that have its name.

        Raises:
            AuthorityError: the name cannot be one, or another node has it, or its certificate has expired.
            SkylaneError: the name has a character that a topic or an ACL reads as its own.
        """
        checked(role.value, name)
        taken = _RESERVED | {Role.WORKER.value, Role.OPERATOR.value} - {role.value}
        if name in taken:
            raise AuthorityError(f"{role.value} {name!r} is not allowed: the broker knows another by that name")
        kept = self._current(name, role, again=again)
        if kept is not None and not again:
            return self._issued(name, role, kept, is_new=False)
        whose = x509.UniformResourceIdentifier(_identity(role, name))
        return self._sign(name, role, [whose], ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def renew_list(self, days: int) -> datetime:
        """Sign the list of what is revoked anew; when it expires.

        Raises:
            AuthorityError: the list that was kept is damaged.
        """
        return self._write_revoked(self._revoked(), days)

    def revoke(self, name: str) -> int:
        """Revoke all certificates that a name ever had and that have not expired; how many those are.

        The files of the name are removed, so that its next certificate is a new one.

        Raises:
            AuthorityError: the name never had one.
        """
        copies = sorted(path for path in self._kept.glob("*~*.crt") if not path.name.startswith(f"{BROKER}~"))
        issued = [_certificate(path) for path in copies if path.name.startswith(f"{name}~")]
        if not issued:
            known = sorted({path.name.partition("~")[0] for path in copies})
            signed = ", ".join(known) or "none"
            raise AuthorityError(f"{name!r} has no node's certificate of this authority: it signed {signed}")
        alive = [each.serial_number for each in issued if each.not_valid_after_utc > self._now]
        already = tuple(self._revoked())
        new = set(alive) - {each.serial_number for each in already}
        builder = x509.RevokedCertificateBuilder().revocation_date(self._now)
        self._write_revoked([*already, *(builder.serial_number(serial).build() for serial in new)])
        for path in self._files(name):
            path.unlink(missing_ok=True)
        return len(alive)

    def _make(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Skylane authority {secrets.token_hex(4)}")  # Two that are called alike would be confused.
        builder = (
            self._builder(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._kept.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AuthorityError(f"folder {self.folder} cannot be made ({error.strerror}): choose another") from error
        _write_pair(self.certificate_file, self.key_file, builder.sign(key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _SKEW)
            .not_valid_after(self._now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _sign(
        self, name: str, role: Role, alternatives: Iterable[x509.GeneralName], use: x509.ObjectIdentifier, days: int
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        days = min(days, (self.expires - self._now).days)  # What outlives its authority is believed by nobody.
        subject = _name(role.common_name(name))
        certificate = (
            self._builder(subject, self._certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(self._identifier(), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        # First of all the copy: a certificate that is not known of could not be revoked.
        _write(self._kept / f"{name}~{certificate.serial_number:x}.crt", _pem(certificate), _PUBLIC)
        _write_pair(*self._files(name), certificate, key)
        return self._issued(name, role, certificate, is_new=True)

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def _current(self, name: str, role: Role, *, again: bool = False) -> x509.Certificate | None:
        """The certificate that a name has; None where it has none.

        Raises:
            AuthorityError: it is another's; or, not `again`, it has expired, or its key does not belong to it.
        """
        file, key_file = self._files(name)
        if not file.exists() and not key_file.exists():
            return None
        try:
            certificate = _certificate(file) if again else _pair(file, key_file)[1]
        except AuthorityError:
            if again:  # Whose it was is not to be known: what can be lost of it is lost.
                return None
            raise
        if role is not Role.BROKER and _identity(role, name) not in _uris(certificate):
            whose = ", ".join(_uris(certificate)) or "another"
            raise AuthorityError(f"{file} is the certificate of {whose}: choose another name for the {role.value}")
        if again:
            return certificate
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception as error:  # It tells a wrong name, type or signature by errors of three kinds.
            raise AuthorityError(f"{file} was not signed by {self.certificate_file}: make it --again") from error
        if certificate.not_valid_after_utc <= self._now:
            raise AuthorityError(f"{file} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: renew it with --again")
        return certificate

    def _issued(self, name: str, role: Role, certificate: x509.Certificate, *, is_new: bool) -> Issued:
        return Issued(name, role, self._files(name)[0], certificate.not_valid_after_utc, is_new)

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _write_revoked(self, certificates: Iterable[x509.RevokedCertificate], days: int = LIST_DAYS) -> datetime:
        expires = min(self._now + timedelta(days=days), self.expires)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(self._now - _SKEW)
            .next_update(expires)
            .add_extension(self._identifier(), critical=False)
        )
        for each in certificates:
            builder = builder.add_revoked_certificate(each)
        pem = _pem(builder.sign(self._key, hashes.SHA256()))
        for file in (self._revoked_kept, self.revoked_file):
            _write(file, pem, _PUBLIC)
        return expires

    def _revoked(self) -> x509.CertificateRevocationList:
        file = self._revoked_kept
        try:
            return x509.load_pem_x509_crl(file.read_bytes())
        except OSError as error:
            raise AuthorityError(f"{file} cannot be read ({error.strerror}): bring it back") from error
        except ValueError as error:
            raise AuthorityError(f"{file} is no list of revoked certificates in PEM: bring it back") from error


def _identity(role: Role, name: str) -> str:
    """What a certificate says of whose it is: the workers of one deployment share their common name."""
    return f"skylane:{role.value}/{name}"


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.DNSName | x509.IPAddress:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(text))
    if not _HOST.fullmatch(text) or len(text) > 253:  # noqa: PLR2004 (the most that DNS allows)
        raise AuthorityError(
            f"broker {text[:100]!r} is no host: give a name or an address alone, without mqtts:// or port"
        )
    return x509.DNSName(text.lower())


def _alternatives(certificate: x509.Certificate) -> Iterator[str | IPv4Address | IPv6Address]:
    with suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        yield from (name.value for name in names)


def _hosts(certificate: x509.Certificate) -> list[str]:
    return [str(name) for name in _alternatives(certificate)]


def _uris(certificate: x509.Certificate) -> list[str]:
    return [str(name) for name in _alternatives(certificate) if str(name).startswith("skylane:")]


def _certificate(file: Path, mend: str = _MEND) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise AuthorityError(f"{file} cannot be read ({error.strerror}): {mend}") from error
    except ValueError as error:
        raise AuthorityError(f"{file} is no certificate in PEM: {mend}") from error


def _pair(file: Path, key_file: Path, mend: str = _MEND) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    certificate = _certificate(file, mend)
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except OSError as error:
        raise AuthorityError(f"{key_file} cannot be read ({error.strerror}): {mend}") from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{key_file} is no unencrypted key in PEM: {mend}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(f"{key_file} does not belong to {file}: {mend}")
    return key, certificate


def _pem(signed: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _write_pair(file: Path, key_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key_file, pem, _PRIVATE)
    _write(file, _pem(certificate), _PUBLIC)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Replace a file in one stroke; a key is nobody else's at any moment."""
    draft = file.with_name(f"{file.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as output:
            output.write(content)
        draft.replace(file)
    except OSError as error:
        raise AuthorityError(f"{file} cannot be written ({error.strerror}): make the folder writable") from error
