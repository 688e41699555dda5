import os
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.broker.certificate_authority import AUTHORITY_DAYS, AuthorityError, CertificateAuthority, Issued, Role
from shared.errors import SkylaneError


def read(file: Path) -> x509.Certificate:
    """A certificate."""
    return x509.load_pem_x509_certificate(file.read_bytes())


def revoked(authority: CertificateAuthority) -> set[int]:
    """The serial numbers on the authority's list."""
    return {each.serial_number for each in x509.load_pem_x509_crl(authority.revoked_file.read_bytes())}


def common_name(issued: Issued) -> str:
    """Whom the broker takes a client for."""
    (name,) = read(issued.file).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """A new authority."""
    return CertificateAuthority(tmp_path / "certs")


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [(Role.VEHICLE, "car-1", "car-1"), (Role.WORKER, "gpu-1", "worker"), (Role.OPERATOR, "anna", "operator")],
)
def test_the_common_name_is_what_the_roles_go_by(
    authority: CertificateAuthority, role: Role, name: str, expected: str
) -> None:
    """A worker's file has its own name, for `--certs`; the broker knows it by its role."""
    issued = authority.node(role, name, 90)
    assert issued.file == authority.folder / f"{name}.crt"
    assert common_name(issued) == expected


def test_a_certificate_serves_one_use_and_signs_nothing(authority: CertificateAuthority) -> None:
    """A vehicle's key in a thief's hands must neither pass for the broker nor sign another vehicle."""
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


def test_keys_are_nobody_elses_to_read(tmp_path: Path) -> None:
    """Whatever the user's umask: a key that others read is no secret any more."""
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


def test_openssl_takes_the_chain(authority: CertificateAuthority) -> None:
    """What Python and Mosquitto verify with, in its strict mode."""
    issued = authority.node(Role.VEHICLE, "car-1", 90)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate_file))
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(issued.file, issued.file.with_suffix(".key"))
    assert len(context.get_ca_certs()) == 1


def test_what_is_there_is_kept_and_again_makes_it_new(authority: CertificateAuthority) -> None:
    """Run twice, the command must not lock out the cars that carry the first certificates."""
    first = authority.node(Role.VEHICLE, "car-1", 90)
    content = first.file.read_bytes()
    again = CertificateAuthority(authority.folder)
    assert not again.is_new
    assert not again.node(Role.VEHICLE, "car-1", 90).is_new
    assert first.file.read_bytes() == content
    assert again.node(Role.VEHICLE, "car-1", 90, again=True).is_new
    assert first.file.read_bytes() != content
    assert again.node(Role.VEHICLE, "car-1", 90).is_new is False  # Key and certificate belong together.


def test_the_broker_is_known_by_every_name_and_address(authority: CertificateAuthority) -> None:
    """A client compares what it connects to with these, and with nothing else."""
    issued = authority.broker(["Broker.example.org", "192.0.2.10", "::1"], 90)
    names = read(issued.file).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"broker.example.org", "192.0.2.10", "::1"}
    assert not authority.broker(["192.0.2.10"], 90).is_new  # One of them is asked for: it is.
    with pytest.raises(AuthorityError, match=r"is for .*192\.0\.2\.10.*: to have it for other\.org, say --again"):
        authority.broker(["other.org"], 90)


@pytest.mark.parametrize("host", ["mqtts://broker", "broker:8883", "", "a b", "*.example.org", "-x", "x" * 64])
def test_a_broker_that_is_no_host_is_refused(authority: CertificateAuthority, host: str) -> None:
    """A certificate for what nobody connects to would fail at the first connection, far from here."""
    with pytest.raises(AuthorityError, match="is no host: give a name or an address alone"):
        authority.broker([host], 90)


@pytest.mark.parametrize("name", ["worker", "operator", "server", "ca", "crl"])
def test_a_vehicle_cannot_have_the_name_of_a_role_or_a_file(authority: CertificateAuthority, name: str) -> None:
    """A vehicle called `worker` would be one."""
    with pytest.raises(AuthorityError, match="is not allowed: the broker knows another by that name"):
        authority.node(Role.VEHICLE, name, 90)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "../x", "", "a b", "x" * 65, "car~1"])
def test_a_name_that_a_topic_or_a_pattern_would_read_is_refused(authority: CertificateAuthority, name: str) -> None:
    """The broker puts the common name into the patterns of its ACL as it is."""
    for role in (Role.VEHICLE, Role.WORKER, Role.OPERATOR):
        with pytest.raises(SkylaneError, match="A-Z a-z 0-9"):
            authority.node(role, name, 90)


def test_one_name_is_one_node(authority: CertificateAuthority) -> None:
    """A worker's certificate handed to a vehicle because the files are called alike would open every door."""
    authority.node(Role.WORKER, "a", 90)
    with pytest.raises(AuthorityError, match=r"is the certificate of skylane:worker/a: choose another name"):
        authority.node(Role.VEHICLE, "a", 90, again=True)


def test_an_expired_certificate_is_told_and_again_renews_it(tmp_path: Path) -> None:
    """Kept in silence, it would be handed out."""
    long_ago = datetime.now(UTC) - timedelta(days=100)
    CertificateAuthority(tmp_path, now=long_ago).node(Role.VEHICLE, "car-1", 90)
    authority = CertificateAuthority(tmp_path)
    with pytest.raises(AuthorityError, match=r"car-1\.crt expired on .*: renew it with --again"):
        authority.node(Role.VEHICLE, "car-1", 90)
    assert authority.node(Role.VEHICLE, "car-1", 90, again=True).is_new


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    """It would be believed by nobody from that day on, and would say otherwise."""
    old = CertificateAuthority(tmp_path, now=datetime.now(UTC) - timedelta(days=AUTHORITY_DAYS - 10))
    assert CertificateAuthority(tmp_path).node(Role.VEHICLE, "car-1", 90).expires <= old.expires
    with pytest.raises(AuthorityError, match=r"expired on .*: make another in a new folder"):
        CertificateAuthority(tmp_path, now=old.expires + timedelta(days=1))


def test_a_revoked_name_is_refused_with_all_it_ever_had(authority: CertificateAuthority) -> None:
    """A car that was stolen may carry any of them."""
    other = read(authority.node(Role.VEHICLE, "car-10", 90).file)  # Its name begins alike.
    serials = {read(authority.node(Role.VEHICLE, "car-1", 90, again=True).file).serial_number for _ in range(2)}
    assert revoked(authority) == set()
    assert authority.revoke("car-1") == 2
    assert revoked(authority) == serials
    assert not (authority.folder / "car-1.key").exists()
    new = authority.node(Role.VEHICLE, "car-1", 90)
    CertificateAuthority(authority.folder).revoke("car-10")
    assert revoked(authority) == serials | {other.serial_number}  # The list grows, and loses nothing.
    assert read(new.file).serial_number not in revoked(authority)


def test_a_lost_list_comes_back_with_all_that_was_revoked(authority: CertificateAuthority) -> None:
    """An empty one in its place would let in the car that was stolen, and nobody would see it."""
    serial = read(authority.node(Role.VEHICLE, "car-1", 90).file).serial_number
    authority.revoke("car-1")
    authority.revoked_file.unlink()
    again = CertificateAuthority(authority.folder)
    assert revoked(again) == {serial}
    again.revoked_file.write_text("x")
    again.node(Role.VEHICLE, "car-2", 90)
    again.revoke("car-2")
    assert serial in revoked(again)


def test_a_damaged_list_is_told_before_anything_is_revoked(authority: CertificateAuthority) -> None:
    """The error must name the file, and the car must not pass for revoked."""
    issued = authority.node(Role.VEHICLE, "car-1", 90)
    kept = authority.folder / "authority" / "crl.pem"
    for damage, problem in ((lambda: kept.write_text("x"), "is no list of revoked"), (kept.unlink, "cannot be read")):
        damage()
        with pytest.raises(AuthorityError, match=rf"authority/crl\.pem {problem}.*: bring it back"):
            authority.revoke("car-1")
        assert issued.file.exists()


@pytest.mark.parametrize(
    "damage",
    [lambda file: file.unlink(), lambda file: file.write_text("x"), lambda file: file.with_suffix(".key").unlink()],
)
def test_what_is_damaged_is_made_again_where_asked(
    authority: CertificateAuthority, damage: Callable[[Path], object]
) -> None:
    """The error says --again: it must be a way out."""
    damage(authority.node(Role.VEHICLE, "car-1", 90).file)
    with pytest.raises(AuthorityError, match="bring it back, or make it --again"):
        authority.node(Role.VEHICLE, "car-1", 90)
    assert authority.node(Role.VEHICLE, "car-1", 90, again=True).is_new


@pytest.mark.parametrize("name", ["car-9", "*", "server", "ca"])
def test_only_a_name_that_was_signed_can_be_revoked(authority: CertificateAuthority, name: str) -> None:
    """A slip of the pen must not pass for a car that is locked out."""
    authority.broker(["b"], 90)
    authority.node(Role.VEHICLE, "car-1", 90)
    with pytest.raises(AuthorityError, match=r"no node's certificate of this authority: it signed car-1"):
        authority.revoke(name)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "car-1.crt").write_text("x"), r"car-1\.crt is no certificate in PEM"),
        (lambda folder: (folder / "car-1.key").write_text("x"), r"car-1\.key is no unencrypted key in PEM"),
        (lambda folder: (folder / "car-1.key").unlink(), r"car-1\.key cannot be read"),
        (lambda folder: (folder / "car-2.key").replace(folder / "car-1.key"), r"car-1\.key does not belong to"),
        (lambda folder: (folder / "ca.crt").unlink(), r"ca\.crt cannot be read .*: bring back both"),
        (lambda folder: (folder / "authority" / "ca.key").unlink(), r"ca\.key cannot be read .*: bring back both"),
    ],
)
def test_damage_is_told_and_nothing_is_made_over_it(
    authority: CertificateAuthority, damage: Callable[[Path], object], problem: str
) -> None:
    """A second authority over the first one's files would lock every node out."""
    for name in ("car-1", "car-2"):
        authority.node(Role.VEHICLE, name, 90)
    damage(authority.folder)
    with pytest.raises(AuthorityError, match=problem):
        CertificateAuthority(authority.folder).node(Role.VEHICLE, "car-1", 90)


def test_another_authoritys_certificate_is_not_kept(authority: CertificateAuthority, tmp_path: Path) -> None:
    """It lies there by a mistake, and the broker would refuse it."""
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 90)
    for suffix in ("crt", "key"):
        (other.folder / f"car-1.{suffix}").replace(authority.folder / f"car-1.{suffix}")
    with pytest.raises(AuthorityError, match=r"was not signed by .*ca\.crt: make it --again"):
        authority.node(Role.VEHICLE, "car-1", 90)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """In one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AuthorityError, match=r"cannot be made .*: choose another"):
        CertificateAuthority(tmp_path / "file" / "certs")
