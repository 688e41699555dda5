"""The certificate authority of a deployment: issues, renews and revokes the certificates for the secured broker.

Its folder holds PEM files: `ca.crt`, the revocation list `crl.pem`, `server.crt` and `server.key` of the broker, and
`<name>.crt` and `<name>.key` of every node. The subfolder `authority/` holds the private parts: `ca.key`, a copy of
every certificate ever issued (needed to revoke a name), and the original of `crl.pem`.
"""

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
from shared.files import create_file, read_file
from shared.messages.topics import ROLES, validate_name

AUTHORITY_DAYS = 3650
CRL_DAYS = 365  # A broker whose revocation list has expired refuses every client.
BROKER = "server"  # Stem of the broker's file names.
_SKEW = timedelta(hours=1)  # Certificates are valid from an hour ago, for nodes whose clock is behind.
_RESERVED = {"ca", "crl", BROKER}
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
_PRIVATE, _PUBLIC = 0o600, 0o644
_REMEDY = "restore it, or issue it again with --again"


class AuthorityError(SkylaneError):
    """A certificate cannot be issued, reused or revoked as requested."""


class Role(StrEnum):
    """The kind of holder of a certificate."""

    BROKER = "broker"
    VEHICLE = "vehicle"
    WORKER = "worker"
    OPERATOR = "operator"
    VIEWER = "viewer"

    def common_name(self, name: str) -> str:
        """Returns the common name that the broker's ACL uses: the name for a vehicle and the broker, the role for others."""
        return name if self in (Role.VEHICLE, Role.BROKER) else self.value


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate in the folder."""

    name: str
    role: Role
    file: Path
    expires: datetime
    is_new: bool  # False: an existing certificate was kept.


class CertificateAuthority:
    """The authority in a folder, which is created if it does not exist."""

    def __init__(self, folder: Path, *, now: datetime | None = None, creates: bool = True) -> None:
        """Opens the authority, or `creates` it. `now` replaces the current time in tests of expired certificates.

        Raises:
            AuthorityError: the folder cannot be written or has no authority, or that has expired or is damaged.
        """
        self.folder = folder
        self._now = (now or datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)).replace(microsecond=0)
        self._private = folder / "authority"
        self.key_file = self._private / "ca.key"
        self.certificate_file = folder / "ca.crt"
        self.crl_file = folder / "crl.pem"
        self._private_crl = self._private / "crl.pem"
        self.is_new = not (self.key_file.exists() or self.certificate_file.exists())
        if not (creates if self.is_new else self._private.exists()):
            raise AuthorityError(f"{folder} holds no authority: give the folder that has authority/ca.key")
        if self.is_new:
            self._create()
        self._key, self._certificate = _pair(self.certificate_file, self.key_file, "restore both files")
        if self._certificate.not_valid_after_utc <= self._now:
            raise AuthorityError(
                f"the authority {self.certificate_file} expired on {self._certificate.not_valid_after_utc:%Y-%m-%d}: "
                "create a new one in another folder, and give its ca.crt to every node"
            )
        if self.is_new:
            self._write_crl((), self._now + timedelta(days=CRL_DAYS))
        elif not self.crl_file.exists():  # A new, empty list would accept revoked certificates.
            _write(self.crl_file, _pem(self._read_crl()), _PUBLIC)

    @property
    def expires(self) -> datetime:
        """Expiry of the authority's own certificate."""
        return self._certificate.not_valid_after_utc

    def broker(self, hosts: Sequence[str], days: int, *, again: bool = False) -> IssuedCertificate:
        """Returns the broker's certificate; issues it if it is missing, or with `again`.

        `hosts` are the names and addresses that clients connect to.

        Raises:
            AuthorityError: a host is not valid, or the existing certificate is for other hosts or has expired.
        """
        names = [_host(host) for host in dict.fromkeys(hosts)]
        existing = None if again else self._current(BROKER, Role.BROKER)
        if existing is not None:
            old = set(_hosts(existing))
            if not {str(name.value) for name in names} <= old:
                raise AuthorityError(
                    f"{self._files(BROKER)[0]} is for {', '.join(sorted(old))}: to issue it for {', '.join(hosts)}, "
                    "give --again"
                )
            return self._issued(BROKER, Role.BROKER, existing, is_new=False)
        return self._sign(BROKER, Role.BROKER, names, ExtendedKeyUsageOID.SERVER_AUTH, days)

    def node(self, role: Role, name: str, days: int, *, again: bool = False) -> IssuedCertificate:
        """Returns a node's certificate; issues it if it is missing, or with `again`. Its files are called by `name`.

        Raises:
            AuthorityError: the name is reserved or belongs to another node, or its certificate has expired.
            SkylaneError: the name contains a character with a meaning in topics or ACLs.
        """
        validate_name(role.value, name)
        reserved = _RESERVED | {*ROLES} - {role.value}
        if name in reserved:
            raise AuthorityError(f"{role.value} {name!r} is reserved: choose another name")
        existing = self._current(name, role, again=again)
        if existing is not None and not again:
            return self._issued(name, role, existing, is_new=False)
        identity = x509.UniformResourceIdentifier(_identity(role, name))
        return self._sign(name, role, [identity], ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def renew_crl(self, days: int | None = None) -> datetime:
        """Signs the revocation list again and returns when it expires: after `days`, but not after the authority.

        None: after CRL_DAYS, or when the old list expires, whichever is later.

        Raises:
            AuthorityError: the existing list is damaged.
        """
        crl = self._read_crl()
        return self._write_crl(crl, self._lasting(crl) if days is None else self._now + timedelta(days=days))

    def revoke(self, name: str) -> int:
        """Revokes all unexpired certificates of a name and returns their number, with those revoked before.

        Its files are removed, so that its next certificate is a new one.

        Raises:
            AuthorityError: the name never had a certificate.
        """
        copies = sorted(path for path in self._private.glob("*~*.crt") if not path.name.startswith(f"{BROKER}~"))
        issued = [_certificate(path) for path in copies if path.name.startswith(f"{name}~")]
        if not issued:
            known = sorted({path.name.partition("~")[0] for path in copies})
            holders = ", ".join(known) or "no node"
            raise AuthorityError(
                f"this authority has issued no certificate to a node called {name!r}: it issued them to {holders}"
            )
        valid = [each.serial_number for each in issued if each.not_valid_after_utc > self._now]
        crl = self._read_crl()
        revoked = tuple(crl)
        new = set(valid) - {each.serial_number for each in revoked}
        builder = x509.RevokedCertificateBuilder().revocation_date(self._now)
        self._write_crl([*revoked, *(builder.serial_number(serial).build() for serial in new)], self._lasting(crl))
        for path in self._files(name):
            path.unlink(missing_ok=True)
        return len(valid)

    def _create(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Skylane authority {secrets.token_hex(4)}")  # Authorities need distinct names.
        builder = (
            self._builder(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._private.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AuthorityError(
                f"folder {self.folder} cannot be created ({error.strerror}): choose another"
            ) from error
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
    ) -> IssuedCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        days = min(days, (self.expires - self._now).days)  # No certificate may outlive its authority.
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
        # The copy is written first, as a certificate without one could not be revoked.
        _write(self._private / f"{name}~{certificate.serial_number:x}.crt", _pem(certificate), _PUBLIC)
        _write_pair(*self._files(name), certificate, key)
        return self._issued(name, role, certificate, is_new=True)

    def _identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def _current(self, name: str, role: Role, *, again: bool = False) -> x509.Certificate | None:
        """Returns the certificate of a name; None if the name has no certificate.

        Raises:
            AuthorityError: it belongs to another node or, without `again`, has expired or does not match its key.
        """
        file, key_file = self._files(name)
        if not file.exists() and not key_file.exists():
            return None
        try:
            certificate = _certificate(file) if again else _pair(file, key_file)[1]
        except AuthorityError:
            if again:  # It is damaged, so its holder is unknown and it is replaced.
                return None
            raise
        if role is not Role.BROKER and _identity(role, name) not in _uris(certificate):
            if again and not any(uri.endswith(f"/{name}") for uri in _uris(certificate)):
                return None  # It is a copy under a wrong name.
            holder = ", ".join(_uris(certificate)) or "another node"
            raise AuthorityError(f"{file} is the certificate of {holder}: choose another name for the {role.value}")
        if again:
            return certificate
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception as error:  # It raises three unrelated kinds of error.
            raise AuthorityError(
                f"{file} was not signed by {self.certificate_file}: issue it again with --again"
            ) from error
        if certificate.not_valid_after_utc <= self._now:
            raise AuthorityError(f"{file} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: renew it with --again")
        return certificate

    def _issued(self, name: str, role: Role, certificate: x509.Certificate, *, is_new: bool) -> IssuedCertificate:
        return IssuedCertificate(name, role, self._files(name)[0], certificate.not_valid_after_utc, is_new)

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _lasting(self, crl: x509.CertificateRevocationList) -> datetime:
        """Returns the expiry of the list's successor: after `CRL_DAYS`, or later if the list is valid for longer."""
        return max(self._now + timedelta(days=CRL_DAYS), crl.next_update_utc or self._now)

    def _write_crl(self, certificates: Iterable[x509.RevokedCertificate], expires: datetime) -> datetime:
        expires = min(expires, self.expires)
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
        for file in (self._private_crl, self.crl_file):
            _write(file, pem, _PUBLIC)
        return expires

    def _read_crl(self) -> x509.CertificateRevocationList:
        file = self._private_crl
        try:
            return x509.load_pem_x509_crl(read_file(file))
        except OSError as error:
            raise AuthorityError(f"{file} cannot be read ({error.strerror}): restore it") from error
        except ValueError as error:
            raise AuthorityError(f"{file} is not a PEM revocation list: restore it") from error


def _identity(role: Role, name: str) -> str:
    """Returns the URI that identifies the holder, as all workers of a deployment share one common name."""
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
    if not _HOST.fullmatch(text) or len(text) > 253:  # The limit of DNS
        raise AuthorityError(
            f"broker {text[:100]!r} is not a host: give a name or an address, without mqtts:// or port"
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


def _certificate(file: Path, remedy: str = _REMEDY) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(file))
    except OSError as error:
        raise AuthorityError(f"{file} cannot be read ({error.strerror}): {remedy}") from error
    except ValueError as error:
        raise AuthorityError(f"{file} is not a PEM certificate: {remedy}") from error


def _pair(file: Path, key_file: Path, remedy: str = _REMEDY) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    certificate = _certificate(file, remedy)
    try:
        key = serialization.load_pem_private_key(read_file(key_file), None)
    except OSError as error:
        raise AuthorityError(f"{key_file} cannot be read ({error.strerror}): {remedy}") from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{key_file} is not an unencrypted PEM key: {remedy}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(f"{key_file} does not belong to {file}: {remedy}")
    return key, certificate


def _pem(signed: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def _write_pair(file: Path, key_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key_file, pem, _PRIVATE)
    _write(file, _pem(certificate), _PUBLIC)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Replaces a file atomically, also a read-only one, with the mode set from the start."""
    draft = file.with_name(f"{file.name}.new")
    try:
        with create_file(draft, mode) as new:
            new.write(content)
        draft.replace(file)
    except OSError as error:
        raise AuthorityError(f"{file} cannot be written ({error.strerror}): make the folder writable") from error
