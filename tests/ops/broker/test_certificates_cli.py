import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from ops.broker.certificate_authority import CRL_DAYS
from ops.broker.cli import broker
from shared.errors import SkylaneError

KEY_MARK = "PRIVATE KEY"


def certs(folder: Path, *flags: str) -> Result:
    """Runs `skylane broker certs`."""
    return CliRunner().invoke(broker, ["certs", str(folder), *flags], catch_exceptions=True)


def test_one_command_creates_the_certificates_of_a_deployment(tmp_path: Path) -> None:
    """The output lists the files, their expiry and their use, but no key. A second run keeps the files."""
    names = ["--broker", "localhost", "--vehicle", "car-1", "--worker", "worker-1", "--operator", "anna"]
    run = certs(tmp_path / "certs", *names)
    assert run.exit_code == 0, run.output
    for line in ("vehicle car-1", "worker worker-1", "operator anna", "broker server", "--secured", "--certs", "new"):
        assert line in run.output
    assert KEY_MARK not in run.output
    files = {path.name for path in (tmp_path / "certs").iterdir()}
    pairs = {f"{name}.{kind}" for name in ("server", "car-1", "worker-1", "anna") for kind in ("crt", "key")}
    assert files == pairs | {"authority", "ca.crt", "crl.pem"}
    assert certs(tmp_path / "certs", *names).output.count("kept") == 4


def test_revoking_says_to_reload_the_broker(tmp_path: Path) -> None:
    """The broker reads the revocation list when it starts, and on SIGHUP."""
    certs(tmp_path, "--vehicle", "car-1")
    assert "car-1: certificates revoked: 1; reload the broker" in certs(tmp_path, "--revoke", "car-1").output


def crl(folder: Path) -> x509.CertificateRevocationList:
    """Returns the revocation list."""
    return x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())


def days_left(folder: Path) -> int:
    """Returns how long the revocation list is still valid."""
    expires = crl(folder).next_update_utc
    assert expires is not None
    return (expires - datetime.now(UTC)).days


def test_the_revocation_list_can_be_renewed(tmp_path: Path) -> None:
    """The new list has the same entries, and the output shows its expiry."""
    certs(tmp_path, "--vehicle", "car-1")
    certs(tmp_path, "--revoke", "car-1")
    old = crl(tmp_path)
    run = certs(tmp_path, "--renew-list", "--days", "30")
    assert run.exit_code == 0, run.output
    new = crl(tmp_path)
    assert days_left(tmp_path) == 29
    assert f"expires {new.next_update_utc:%Y-%m-%d}: renew it with --renew-list" in run.output
    assert [each.serial_number for each in new] == [each.serial_number for each in old] != []


@pytest.mark.parametrize(
    "flags",
    [
        ("--vehicle", "guest"),
        ("--vehicle", "guest", "--renew-list"),
        ("--revoke", "car-1"),
        ("--broker", "b", "--again"),
    ],
)
@pytest.mark.parametrize("before", [5, 700])
def test_a_node_for_a_day_does_not_shorten_the_revocation_list(
    tmp_path: Path, flags: tuple[str, ...], before: int
) -> None:
    """The list is that of the whole fleet: once it has expired, the broker refuses every client."""
    certs(tmp_path, "--vehicle", "car-1")
    certs(tmp_path, "--renew-list", "--days", str(before))
    assert certs(tmp_path, *flags, "--days", "1").exit_code == 0
    assert days_left(tmp_path) == max(CRL_DAYS, before) - 1
    certs(tmp_path, "--renew-list")
    assert days_left(tmp_path) == max(CRL_DAYS, before) - 1


@pytest.mark.parametrize(
    "flags",
    [("--vehicle", "car-1", "--again"), ("--broker", "b", "--again"), ("--revoke", "car-1"), ("--renew-list",)],
)
def test_nothing_is_renewed_by_a_new_authority(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """In a wrong folder, or in that of a node, it would sign what no broker accepts."""
    for folder in (tmp_path / "wrong", tmp_path / "node"):
        if folder.name == "node":
            certs(tmp_path / "authority", "--vehicle", "car-1")
            folder.mkdir()
            shutil.copy(tmp_path / "authority" / "ca.crt", folder)
        run = certs(folder, *flags)
        assert isinstance(run.exception, SkylaneError)
        assert str(run.exception) == f"{folder} holds no authority: give the folder that has authority/ca.key"
        assert not (folder / "authority").exists()


def test_a_folder_name_may_contain_markup(tmp_path: Path) -> None:
    """Rich must not interpret brackets in the name."""
    run = certs(tmp_path / "a[" / "] [bold]b", "--vehicle", "car-1")
    assert run.exit_code == 0, run.output
    assert "] [bold]b\n" in run.output


@pytest.mark.parametrize(
    ("flags", "problem"),
    [((), "no certificate was requested: give --broker"), (("--vehicle", "a/b"), "Invalid value for '--vehicle'")],
)
def test_a_wrong_command_line_is_a_usage_error(tmp_path: Path, flags: tuple[str, ...], problem: str) -> None:
    """The exit code is 2, as for all commands."""
    run = certs(tmp_path, *flags)
    assert run.exit_code == 2
    assert problem in run.output


def test_a_reserved_name_is_an_error_for_the_user(tmp_path: Path) -> None:
    """`skylane` reports it in one line."""
    run = certs(tmp_path, "--vehicle", "worker")
    assert run.exit_code == 2
    assert "vehicle 'worker' has the name of a role at the broker: choose another name" in run.output
    run = certs(tmp_path, "--vehicle", "server")
    assert isinstance(run.exception, SkylaneError)
    assert "'server' is reserved" in str(run.exception)


def test_a_missing_library_is_reported_with_its_extra(tmp_path: Path) -> None:
    """Only issuing certificates needs `cryptography`."""
    script = (
        "import sys\nsys.modules['cryptography'] = None\n"
        f"from skylane import cli\ncli.main(['broker', 'certs', {str(tmp_path)!r}, '--vehicle', 'car-1'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("skylane: 'skylane broker certs' needs cryptography")
    assert "pip install 'skylane[broker]'" in done.stderr
