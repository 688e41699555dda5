"""The wheel, built and installed as a user would: it needs no checkout, no root and no Mosquitto."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
NOBODY = 65534  # The user without rights, by number: images without a user database have it too.
SHIPPED_MODELS = ("road-objects", "road-small", "road-weather")
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


class Installation:
    """Skylane's wheel in a virtual environment that sees the tests' libraries, and a user's folders."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        python, self._user = _python_and_user()
        self.is_unprivileged = bool(self._user) or os.geteuid() != 0
        self.python = folder / "venv" / "bin" / "python"
        self.home, self.work = folder / "home", folder / "work"
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, env=clean)
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, env=clean)
        self.site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # Behind the wheel's own folder. A path file of that other folder, such as an editable Skylane's, is not read.
        (self.site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        for path in (self.home, self.work):
            path.mkdir()
            if self._user:
                os.chown(path, NOBODY, NOBODY)

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `python` with these arguments as an unprivileged user, where the tests may become one."""
        environment = {"PATH": f"{self.python.parent}:/usr/bin:/bin", "HOME": str(self.home), "TERM": "dumb"}
        return subprocess.run(
            [self.python, *arguments],
            cwd=cwd or self.work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            **self._user,
        )

    def skylane(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `skylane` as `run` does."""
        return self.run(self.python.with_name("skylane"), *arguments, cwd=cwd)

    def files(self) -> dict[Path, int]:
        """When each file of the installation was changed, bytecode apart."""
        paths = [path for path in self.site.rglob("*") if "__pycache__" not in path.parts]
        return {path: path.stat().st_mtime_ns for path in paths}


def _python_and_user() -> tuple[str, dict[str, Any]]:
    """A Python of the tests' version, and what makes a subprocess of it the user without rights.

    The second is empty where the tests are not root, or where that user could run no such Python.
    """
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    for python in (sys.executable, system):
        if python is None or os.geteuid() != 0:
            continue
        try:
            subprocess.run([python, "-c", "import venv"], check=True, capture_output=True, cwd="/", **user)
        except (PermissionError, subprocess.CalledProcessError):
            continue
        return python, user
    return sys.executable, {}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that other users may enter, inside somebody's git repository."""
    path = Path(tempfile.mkdtemp(prefix="skylane-wheel-"))
    path.chmod(0o755)
    subprocess.run([*GIT, "init", "--quiet", path], check=True)
    subprocess.run([*GIT, "-C", path, "commit", "--quiet", "--allow-empty", "-m", "another project"], check=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """The wheel, as `make wheel` builds it."""
    subprocess.run([ROOT / ".ci" / "make-wheel", folder / "dist"], check=True, capture_output=True)
    (built,) = (folder / "dist").glob("skylane-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Installation:
    """The wheel, installed."""
    return Installation(folder, wheel)


def test_the_wheel_holds_the_data_and_nothing_of_the_repositorys_alone(wheel: Path) -> None:
    """Without a label file or a model the first command would fail; with 11 GB of peers' servers nobody would take it."""
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder in ("configs", "mosquitto", *(f"models/{name}" for name in SHIPPED_MODELS)):
            files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
            assert files
            for path in files:
                assert archive.read(f"skylane_data/{path.relative_to(ROOT)}") == path.read_bytes()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {
        *("bench", "cloud", "edge", "modelling", "rosbag_tools", "shared"),
        *("skylane.py", "skylane_data"),
    }
    assert not [name for name in names if name.startswith(("bench/peers/", "bench/baselines/"))]
    assert {name.split("/")[2] for name in names if name.startswith("skylane_data/models/")} == set(SHIPPED_MODELS)


def test_what_is_imported_is_the_wheel(installed: Installation) -> None:
    """The tests below would otherwise try the checkout."""
    done = installed.run("-P", "-c", "import bench, cloud, shared, skylane; print(bench.__file__, cloud.__file__)")
    assert done.returncode == 0, done.stderr
    assert [Path(path).parents[1] for path in done.stdout.split()] == [installed.site] * 2


def test_the_demo_runs_from_any_folder_and_writes_there_alone(installed: Installation) -> None:
    """The newcomer's first command. The commit of a repository above the environment is not Skylane's."""
    before = installed.files()
    done = installed.skylane("demo", "--frames", "3", "--broker", "embedded")
    assert done.returncode == 0, done.stdout + done.stderr
    run = installed.work / "runs" / "demo"
    assert (run / "report.html").is_file()
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["outcomes"]["answered"] == 3
    assert manifest["commit"] is None
    assert installed.files() == before


def test_new_models_are_written_to_the_users_folder_and_found_beside_the_shipped(installed: Installation) -> None:
    """An installed package may be another user's, and an update would remove what was written into it."""
    before = installed.files()
    flags = ("--format", "frozen_graph", "--name", "mine")
    done = installed.skylane("model", "build", "road-weather", *flags)
    assert done.returncode == 0, done.stderr
    assert (installed.home / ".local" / "share" / "skylane" / "models" / "mine" / "model.yaml").is_file()
    listed = installed.skylane("model", "list", "--json")
    assert [row["name"] for row in json.loads(listed.stdout)] == sorted(["mine", *SHIPPED_MODELS])
    assert installed.files() == before


def test_a_folder_models_is_read_only_where_it_is_named(installed: Installation) -> None:
    """It used to replace the shipped models wherever somebody had such a folder."""
    models = installed.home / "project" / "models"
    shutil.copytree(ROOT / "models" / "road-weather", models / "own")
    manifest = models / "own" / "model.yaml"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace("name: road-weather", "name: own"), encoding="utf-8"
    )
    listed = installed.skylane("model", "list", "--json", cwd=models.parent)
    assert set(SHIPPED_MODELS) <= {row["name"] for row in json.loads(listed.stdout)}
    assert "own" not in {row["name"] for row in json.loads(listed.stdout)}
    missed = installed.skylane("model", "verify", "own", cwd=models.parent)
    assert missed.returncode == 1
    assert "--models ./models" in missed.stderr
    named = installed.skylane("model", "list", "--json", "--models", "./models", cwd=models.parent)
    assert [row["name"] for row in json.loads(named.stdout)] == ["own"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("demo", "--frames", "3"), "skylane: bag runs/"),
        (("study", "run", "quick", "--out", "out"), "skylane: cannot use out"),
    ],
    ids=["demo", "study"],
)
def test_a_folder_that_cannot_be_written_is_reported_in_a_line(
    installed: Installation, command: tuple[str, ...], problem: str
) -> None:
    """A traceback would tell a user nothing of what to do."""
    if not installed.is_unprivileged:
        pytest.skip("root may write anywhere")
    done = installed.skylane(*command, cwd=installed.site)
    assert done.returncode == 1
    assert done.stderr.startswith(problem)
    assert "Permission denied" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("bench", ["baselines", "peers"])
def test_a_bench_of_the_repository_says_that_it_needs_a_checkout(installed: Installation, bench: str) -> None:
    """Its rivals' servers and their environments are no part of the wheel."""
    done = installed.skylane("bench", bench, "--rounds", "1")
    assert done.returncode == 1
    assert f"'skylane bench {bench}' needs a checkout of the repository" in done.stderr
    assert bench in installed.skylane("bench", "--help").stdout


def test_the_secured_brokers_settings_are_those_of_the_wheel(installed: Installation) -> None:
    """A broker that runs other settings than those that ship is one that nobody reviewed."""
    show = "from shared.broker.mosquitto import MosquittoListener, configuration as c; print(c('secured.conf', MosquittoListener('127.0.0.1', 1)))"
    done = installed.run("-P", "-c", show)
    assert done.returncode == 0, done.stderr
    assert "\nlistener 1 127.0.0.1\ncafile /mosquitto/certs/ca.crt\n" in done.stdout
    assert "\nrequire_certificate true\n" in done.stdout
