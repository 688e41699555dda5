import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime import machine

_COMMIT = "from shared.runtime.machine import commit; print(commit())"


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.org")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A foreign repository with one commit."""
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "other.txt").write_text("other")
    _git(tmp_path, "add", "other.txt")
    _git(tmp_path, "commit", "--quiet", "--message", "Other")
    return tmp_path


def _commit_from(root: Path) -> str:
    """Returns the commit that Skylane reports if it is installed in `root`."""
    package = root / "shared" / "runtime"
    package.mkdir(parents=True)
    (root / "shared" / "__init__.py").touch()
    for name in ("__init__.py", "machine.py"):
        shutil.copy(Path(machine.__file__).with_name(name), package)
    done = subprocess.run([sys.executable, "-c", _COMMIT], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_installed_package_has_no_commit(repository: Path) -> None:
    """The repository that contains the virtual environment does not count."""
    assert _commit_from(repository / ".venv" / "lib" / "site-packages") == "None"


def test_a_checkout_reports_its_own_commit(repository: Path) -> None:
    """The packages are at the root of the repository."""
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    assert _commit_from(repository) == head.stdout.strip()
