import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

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


def test_the_revocation_list_can_be_renewed(tmp_path: Path) -> None:
    """The new list has the same entries, and the output shows its expiry."""
    certs(tmp_path, "--vehicle", "car-1")
    certs(tmp_path, "--revoke", "car-1", "--days", "5")
    old = x509.load_pem_x509_crl((tmp_path / "crl.pem").read_bytes())
    run = certs(tmp_path, "--renew-list", "--days", "30")
    assert run.exit_code == 0, run.output
    new = x509.load_pem_x509_crl((tmp_path / "crl.pem").read_bytes())
    assert old.next_update_utc is not None
    assert new.next_update_utc is not None
    assert new.next_update_utc - old.next_update_utc > timedelta(days=24)
    assert f"expires {new.next_update_utc:%Y-%m-%d}: renew it with --renew-list" in run.output
    assert [each.serial_number for each in new] == [each.serial_number for each in old] != []


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
