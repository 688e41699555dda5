"""The commit that stands beside a figure is that of Skylane's own checkout, or none."""

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
    """A repository of somebody else, with one commit."""
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "theirs.txt").write_text("theirs")
    _git(tmp_path, "add", "theirs.txt")
    _git(tmp_path, "commit", "--quiet", "--message", "Theirs")
    return tmp_path


def _commit_from(root: Path) -> str:
    """The commit that Skylane reports where its packages lie under `root`."""
    package = root / "shared" / "runtime"
    package.mkdir(parents=True)
    for name in ("__init__.py", "machine.py"):
        shutil.copy(Path(machine.__file__).with_name(name), package)
    done = subprocess.run([sys.executable, "-c", _COMMIT], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_installed_package_has_no_commit_whatever_repository_lies_above_it(repository: Path) -> None:
    """A virtual environment in somebody's project reported that project's commit as Skylane's."""
    assert _commit_from(repository / ".venv" / "lib" / "site-packages") == "None"


def test_a_checkout_reports_its_own_commit(repository: Path) -> None:
    """Where Skylane's packages lie at the root of a repository, that is the checkout they run from."""
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    assert _commit_from(repository) == head.stdout.strip()
