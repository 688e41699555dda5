import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from shared.broker.cli import broker
from shared.errors import SkylaneError

KEY_MARK = "PRIVATE KEY"


def certs(folder: Path, *flags: str) -> Result:
    """`skylane broker certs`."""
    return CliRunner().invoke(broker, ["certs", str(folder), *flags], catch_exceptions=True)


def test_a_deployment_takes_one_command(tmp_path: Path) -> None:
    """It says whose files are where, until when, and what to do with them; and nothing of what is in the keys."""
    asked = ["--broker", "localhost", "--vehicle", "car-1", "--worker", "worker-1", "--operator", "anna"]
    run = certs(tmp_path / "certs", *asked)
    assert run.exit_code == 0, run.output
    for line in ("vehicle car-1", "worker worker-1", "operator anna", "broker server", "--secured", "--certs", "new"):
        assert line in run.output
    assert KEY_MARK not in run.output
    files = {path.name for path in (tmp_path / "certs").iterdir()}
    pairs = {f"{name}.{kind}" for name in ("server", "car-1", "worker-1", "anna") for kind in ("crt", "key")}
    assert files == pairs | {"authority", "ca.crt", "crl.pem"}
    assert certs(tmp_path / "certs", *asked).output.count("kept") == 4


def test_a_revoked_node_is_told_with_what_to_do(tmp_path: Path) -> None:
    """The broker reads the list when it starts."""
    certs(tmp_path, "--vehicle", "car-1")
    assert "car-1: certificates revoked: 1; restart the broker" in certs(tmp_path, "--revoke", "car-1").output


def test_the_list_of_what_is_revoked_is_renewed_by_a_command(tmp_path: Path) -> None:
    """With all that stands on it, and with its new date for whoever looks after the broker."""
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


def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    """Brackets are a style's beginning and end where text is printed in colour."""
    run = certs(tmp_path / "a[" / "] [bold]b", "--vehicle", "car-1")
    assert run.exit_code == 0, run.output
    assert "] [bold]b\n" in run.output


@pytest.mark.parametrize(
    ("flags", "problem"),
    [((), "no certificate was asked for: name --broker"), (("--vehicle", "a/b"), "Invalid value for '--vehicle'")],
)
def test_a_wrong_command_line_is_a_usage_error(tmp_path: Path, flags: tuple[str, ...], problem: str) -> None:
    """Exit code 2, as everywhere."""
    run = certs(tmp_path, *flags)
    assert run.exit_code == 2
    assert problem in run.output


def test_a_name_that_the_broker_keeps_for_itself_is_an_error_that_users_can_mend(tmp_path: Path) -> None:
    """The front door makes one line of it."""
    run = certs(tmp_path, "--vehicle", "worker")
    assert isinstance(run.exception, SkylaneError)
    assert "'worker' is not allowed" in str(run.exception)


def test_without_the_library_the_extra_is_named(tmp_path: Path) -> None:
    """A broker runs without it; certificates cannot be made."""
    script = (
        "import sys\nsys.modules['cryptography'] = None\n"
        f"import skylane\nskylane.main(['broker', 'certs', {str(tmp_path)!r}, '--vehicle', 'car-1'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("skylane: 'skylane broker certs' needs cryptography")
    assert "pip install 'skylane[broker]'" in done.stderr
