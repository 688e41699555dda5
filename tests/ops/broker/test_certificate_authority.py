import os
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ops.broker.certificate_authority import (
    AUTHORITY_DAYS,
    AuthorityError,
    CertificateAuthority,
    IssuedCertificate,
    Role,
)
from shared.errors import SkylaneError


def read(file: Path) -> x509.Certificate:
    """Loads a certificate."""
    return x509.load_pem_x509_certificate(file.read_bytes())


def revoked(authority: CertificateAuthority) -> set[int]:
    """Returns the serial numbers on the revocation list."""
    return {each.serial_number for each in x509.load_pem_x509_crl(authority.crl_file.read_bytes())}


def common_name(issued: IssuedCertificate) -> str:
    """Returns the name by which the broker's ACL identifies a client."""
    (name,) = read(issued.file).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """A new authority."""
    return CertificateAuthority(tmp_path / "certs")


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [
        (Role.VEHICLE, "car-1", "car-1"),
        (Role.WORKER, "gpu-1", "worker"),
        (Role.OPERATOR, "anna", "operator"),
        (Role.VIEWER, "vera", "viewer"),
    ],
)
def test_the_common_name_is_the_vehicle_or_the_role(
    authority: CertificateAuthority, role: Role, name: str, expected: str
) -> None:
    """The file of a worker has the worker's name, but the ACL uses its role."""
    issued = authority.node(role, name, 90)
    assert issued.file == authority.folder / f"{name}.crt"
    assert common_name(issued) == expected


def test_a_certificate_has_one_use_and_cannot_sign(authority: CertificateAuthority) -> None:
    """A stolen vehicle key must allow neither to act as the broker nor to issue certificates."""
    for issued, use in (
        (authority.broker(["b"], 90), ExtendedKeyUsageOID.SERVER_AUTH),
        (authority.node(Role.VEHICLE, "car-1", 90), ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        extensions = read(issued.file).extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [use]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    constraints = read(authority.certificate_file).extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)


def test_only_the_owner_can_read_keys(tmp_path: Path) -> None:
    """The umask does not matter."""
    old = os.umask(0)
    try:
        authority = CertificateAuthority(tmp_path / "certs")
        authority.node(Role.VEHICLE, "car-1", 90)
    finally:
        os.umask(old)
    keys = [*authority.folder.rglob("*.key")]
    assert len(keys) == 2
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert stat.S_IMODE((authority.folder / "authority").stat().st_mode) == 0o700


def test_openssl_accepts_the_chain(authority: CertificateAuthority) -> None:
    """Python and Mosquitto verify with OpenSSL; this uses its strict mode."""
    issued = authority.node(Role.VEHICLE, "car-1", 90)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate_file))
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(issued.file, issued.file.with_suffix(".key"))
    assert len(context.get_ca_certs()) == 1


def test_an_existing_certificate_is_kept_unless_again_is_given(authority: CertificateAuthority) -> None:
    """A second run of the command must not replace certificates that are in use."""
    first = authority.node(Role.VEHICLE, "car-1", 90)
    content = first.file.read_bytes()
    again = CertificateAuthority(authority.folder)
    assert not again.is_new
    assert not again.node(Role.VEHICLE, "car-1", 90).is_new
    assert first.file.read_bytes() == content
    assert again.node(Role.VEHICLE, "car-1", 90, again=True).is_new
    assert first.file.read_bytes() != content
    assert again.node(Role.VEHICLE, "car-1", 90).is_new is False  # Key and certificate match.


def test_the_brokers_certificate_has_all_names_and_addresses(authority: CertificateAuthority) -> None:
    """Clients compare the host that they connect to with these."""
    issued = authority.broker(["Broker.example.org", "192.0.2.10", "::1"], 90)
    names = read(issued.file).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"broker.example.org", "192.0.2.10", "::1"}
    assert not authority.broker(["192.0.2.10"], 90).is_new  # The existing certificate covers it.
    with pytest.raises(AuthorityError, match=r"is for .*192\.0\.2\.10.*: to issue it for other\.org, give --again"):
        authority.broker(["other.org"], 90)


@pytest.mark.parametrize("host", ["mqtts://broker", "broker:8883", "", "a b", "*.example.org", "-x", "x" * 64])
def test_an_invalid_host_is_refused(authority: CertificateAuthority, host: str) -> None:
    """The certificate would otherwise fail at the first connection."""
    with pytest.raises(AuthorityError, match="is not a host: give a name or an address"):
        authority.broker([host], 90)


@pytest.mark.parametrize("name", ["worker", "operator", "viewer", "server", "ca", "crl"])
def test_reserved_names_are_refused(authority: CertificateAuthority, name: str) -> None:
    """The ACL would treat a vehicle called `worker` as a worker."""
    with pytest.raises(SkylaneError, match=r"(is reserved|has the name of a role at the broker): choose another name"):
        authority.node(Role.VEHICLE, name, 90)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "../x", "", "a b", "x" * 65, "car~1"])
def test_names_with_special_characters_are_refused(authority: CertificateAuthority, name: str) -> None:
    """The broker inserts the common name into its ACL patterns unescaped."""
    for role in (Role.VEHICLE, Role.WORKER, Role.OPERATOR):
        with pytest.raises(SkylaneError, match="A-Z a-z 0-9"):
            authority.node(role, name, 90)


def test_a_name_belongs_to_one_node(authority: CertificateAuthority) -> None:
    """A vehicle must not receive a worker's certificate because they share a file name."""
    authority.node(Role.WORKER, "a", 90)
    with pytest.raises(AuthorityError, match=r"is the certificate of skylane:worker/a: choose another name"):
        authority.node(Role.VEHICLE, "a", 90, again=True)


def test_an_expired_certificate_is_reported_and_renewed_with_again(tmp_path: Path) -> None:
    """An expired certificate must not be handed out."""
    long_ago = datetime.now(UTC) - timedelta(days=100)
    CertificateAuthority(tmp_path, now=long_ago).node(Role.VEHICLE, "car-1", 90)
    authority = CertificateAuthority(tmp_path)
    with pytest.raises(AuthorityError, match=r"car-1\.crt expired on .*: renew it with --again"):
        authority.node(Role.VEHICLE, "car-1", 90)
    assert authority.node(Role.VEHICLE, "car-1", 90, again=True).is_new


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    """It would be useless from that day on."""
    old = CertificateAuthority(tmp_path, now=datetime.now(UTC) - timedelta(days=AUTHORITY_DAYS - 10))
    assert CertificateAuthority(tmp_path).node(Role.VEHICLE, "car-1", 90).expires <= old.expires
    with pytest.raises(AuthorityError, match=r"expired on .*: create a new one in another folder"):
        CertificateAuthority(tmp_path, now=old.expires + timedelta(days=1))


def test_revoking_a_name_revokes_all_its_certificates(authority: CertificateAuthority) -> None:
    """A stolen vehicle may have any of them. Earlier revocations stay on the list."""
    other = read(authority.node(Role.VEHICLE, "car-10", 90).file)  # A name with the same prefix.
    serials = {read(authority.node(Role.VEHICLE, "car-1", 90, again=True).file).serial_number for _ in range(2)}
    assert revoked(authority) == set()
    assert authority.revoke("car-1") == 2
    assert revoked(authority) == serials
    assert not (authority.folder / "car-1.key").exists()
    new = authority.node(Role.VEHICLE, "car-1", 90)
    CertificateAuthority(authority.folder).revoke("car-10")
    assert revoked(authority) == serials | {other.serial_number}
    assert read(new.file).serial_number not in revoked(authority)


def test_a_lost_revocation_list_is_restored(authority: CertificateAuthority) -> None:
    """An empty list would accept revoked certificates."""
    serial = read(authority.node(Role.VEHICLE, "car-1", 90).file).serial_number
    authority.revoke("car-1")
    authority.crl_file.unlink()
    again = CertificateAuthority(authority.folder)
    assert revoked(again) == {serial}
    again.crl_file.write_text("x")
    again.node(Role.VEHICLE, "car-2", 90)
    again.revoke("car-2")
    assert serial in revoked(again)


def test_a_damaged_revocation_list_is_reported(authority: CertificateAuthority) -> None:
    """The error names the file, and nothing is revoked."""
    issued = authority.node(Role.VEHICLE, "car-1", 90)
    original = authority.folder / "authority" / "crl.pem"
    for damage, problem in (
        (lambda: original.write_text("x"), "is not a PEM revocation list"),
        (original.unlink, "cannot be read"),
    ):
        damage()
        with pytest.raises(AuthorityError, match=rf"authority/crl\.pem {problem}.*: restore it"):
            authority.revoke("car-1")
        assert issued.file.exists()


@pytest.mark.parametrize(
    "damage",
    [lambda file: file.unlink(), lambda file: file.write_text("x"), lambda file: file.with_suffix(".key").unlink()],
)
def test_a_damaged_certificate_is_replaced_with_again(
    authority: CertificateAuthority, damage: Callable[[Path], object]
) -> None:
    """The error recommends --again, so that must work."""
    damage(authority.node(Role.VEHICLE, "car-1", 90).file)
    with pytest.raises(AuthorityError, match="restore it, or issue it again with --again"):
        authority.node(Role.VEHICLE, "car-1", 90)
    assert authority.node(Role.VEHICLE, "car-1", 90, again=True).is_new


@pytest.mark.parametrize("name", ["car-9", "*", "server", "ca"])
def test_only_names_with_a_certificate_can_be_revoked(authority: CertificateAuthority, name: str) -> None:
    """A mistyped name must be reported."""
    authority.broker(["b"], 90)
    authority.node(Role.VEHICLE, "car-1", 90)
    with pytest.raises(AuthorityError, match=r"has issued no certificate to a node called .*: it issued them to car-1"):
        authority.revoke(name)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "car-1.crt").write_text("x"), r"car-1\.crt is not a PEM certificate"),
        (lambda folder: (folder / "car-1.key").write_text("x"), r"car-1\.key is not an unencrypted PEM key"),
        (lambda folder: (folder / "car-1.key").unlink(), r"car-1\.key cannot be read"),
        (lambda folder: (folder / "car-2.key").replace(folder / "car-1.key"), r"car-1\.key does not belong to"),
        (lambda folder: (folder / "ca.crt").unlink(), r"ca\.crt cannot be read .*: restore both"),
        (lambda folder: (folder / "authority" / "ca.key").unlink(), r"ca\.key cannot be read .*: restore both"),
    ],
)
def test_damaged_files_are_reported_and_not_overwritten(
    authority: CertificateAuthority, damage: Callable[[Path], object], problem: str
) -> None:
    """A new authority in the same folder would invalidate all certificates."""
    for name in ("car-1", "car-2"):
        authority.node(Role.VEHICLE, name, 90)
    damage(authority.folder)
    with pytest.raises(AuthorityError, match=problem):
        CertificateAuthority(authority.folder).node(Role.VEHICLE, "car-1", 90)


def test_a_certificate_of_another_authority_is_not_kept(authority: CertificateAuthority, tmp_path: Path) -> None:
    """The broker would refuse it."""
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 90)
    for suffix in ("crt", "key"):
        (other.folder / f"car-1.{suffix}").replace(authority.folder / f"car-1.{suffix}")
    with pytest.raises(AuthorityError, match=r"was not signed by .*ca\.crt: issue it again with --again"):
        authority.node(Role.VEHICLE, "car-1", 90)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """The parent is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AuthorityError, match=r"cannot be created .*: choose another"):
        CertificateAuthority(tmp_path / "file" / "certs")
