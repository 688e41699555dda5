"""The wheel, built and installed like a user would; it needs neither a checkout nor root nor Mosquitto."""

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
NOBODY = 65534  # Numeric, as some images have no user database.
SHIPPED_MODELS = ("car-tiny", "road-objects", "road-small", "road-tiny", "road-weather")
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


class Installation:
    """Skylane's wheel in a virtual environment with access to the tests' libraries, and a user's folders."""

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
        # After the wheel's own folder; path files of the added folder, such as of an editable Skylane, are not read.
        (self.site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        for path in (self.home, self.work):
            path.mkdir()
            if self._user:
                os.chown(path, NOBODY, NOBODY)

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `python` with these arguments, as an unprivileged user if possible."""
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
        """Runs `skylane` like `run`."""
        return self.run(self.python.with_name("skylane"), *arguments, cwd=cwd)

    def files(self) -> dict[Path, int]:
        """Returns the modification time of each installed file, except bytecode."""
        paths = [path for path in self.site.rglob("*") if "__pycache__" not in path.parts]
        return {path: path.stat().st_mtime_ns for path in paths}


def _python_and_user() -> tuple[str, dict[str, Any]]:
    """Returns a Python of the tests' version, and the subprocess arguments to run it as an unprivileged user.

    The arguments are empty if the tests do not run as root, or if that user cannot run this Python.
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
    """A folder that other users may enter, inside a foreign git repository."""
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
    """The installed wheel."""
    return Installation(folder, wheel)


def test_the_wheel_contains_the_data_but_no_repository_only_files(wheel: Path) -> None:
    """The first command needs labels and models; the peers' servers would add 11 GB."""
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for folder in ("configs", "mosquitto", *(f"models/{name}" for name in SHIPPED_MODELS)):
            files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
            assert files
            for path in files:
                assert archive.read(f"skylane_data/{path.relative_to(ROOT)}") == path.read_bytes()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {
        *("analysis", "cloud", "edge", "modelling", "ops", "rosbag_tools", "shared"),
        *("skylane", "skylane_data"),
    }
    assert "skylane/py.typed" in names
    assert {name.split("/")[2] for name in names if name.startswith("skylane_data/models/")} == set(SHIPPED_MODELS)


def test_imports_come_from_the_wheel(installed: Installation) -> None:
    """The tests below would otherwise test the checkout."""
    done = installed.run(
        "-P", "-c", "import analysis, cloud, shared, skylane; print(analysis.__file__, cloud.__file__)"
    )
    assert done.returncode == 0, done.stderr
    assert [Path(path).parents[1] for path in done.stdout.split()] == [installed.site] * 2


def test_the_demo_writes_only_to_the_current_folder(installed: Installation) -> None:
    """The manifest must not contain the commit of the repository around the environment."""
    before = installed.files()
    done = installed.skylane("demo", "--frames", "3", "--broker", "embedded")
    assert done.returncode == 0, done.stdout + done.stderr
    run = installed.work / "runs" / "demo"
    assert (run / "report.html").is_file()
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["outcomes"]["answered"] == 3
    assert manifest["commit"] is None
    assert installed.files() == before


def test_new_models_are_written_to_the_users_folder(installed: Installation) -> None:
    """The installed package may belong to another user, and an update would delete new models there."""
    before = installed.files()
    flags = ("--format", "frozen_graph", "--name", "mine")
    done = installed.skylane("model", "build", "road-weather", *flags)
    assert done.returncode == 0, done.stderr
    assert (installed.home / ".local" / "share" / "skylane" / "models" / "mine" / "model.yaml").is_file()
    listed = installed.skylane("model", "list", "--json")
    assert [row["name"] for row in json.loads(listed.stdout)] == sorted(["mine", *SHIPPED_MODELS])
    assert installed.files() == before


def test_a_folder_called_models_is_used_only_if_named(installed: Installation) -> None:
    """It must not replace the shipped models just because it exists."""
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
def test_an_unwritable_folder_is_reported_in_one_line(
    installed: Installation, command: tuple[str, ...], problem: str
) -> None:
    """The message says what to do."""
    if not installed.is_unprivileged:
        pytest.skip("root may write anywhere")
    done = installed.skylane(*command, cwd=installed.site)
    assert done.returncode == 1
    assert done.stderr.startswith(problem)
    assert "Permission denied" in done.stderr
    assert len(done.stderr.splitlines()) == 1


DRY_RUNS = """
from shutil import copytree
from click.testing import CliRunner
from modelling.build_cli import build
from ops.study.cli import study
from shared.package_data import shipped

models = ("--models", str(copytree(shipped("models"), "study-models")))
stand_ins = {
    "saved_model": ("street-deeplab", "street-lite"),
    "frozen_graph": ("road-large", *(f"{net}-{side}" for net in ("efficientnet-b7", "mobilenet-v3-large") for side in (224, 600))),
}
calls = [["car-reference"]]
calls += [["road-weather", "--format", form, "--name", name] for form, names in stand_ins.items() for name in names]
for call in calls:
    CliRunner().invoke(build, [*call, *models], catch_exceptions=False)
for plan in sorted((shipped("configs") / "studies").glob("*.yaml")):
    done = CliRunner().invoke(study, ["run", plan.stem, "--dry-run", *models])
    print(plan.stem, done.exit_code, done.exception or "", done.output if done.exit_code else "")
"""


def test_every_study_can_run_without_a_checkout(installed: Installation) -> None:
    """A dry run reads the plan and opens its models; those that are only for timing are small stand-ins here."""
    done = installed.run("-P", "-c", DRY_RUNS)
    assert done.returncode == 0, done.stderr
    studies = sorted(path.stem for path in (ROOT / "configs" / "studies").glob("*.yaml"))
    assert [line.split() for line in done.stdout.splitlines()] == [[name, "0"] for name in studies]


def test_benches_and_trainings_are_for_a_checkout(installed: Installation) -> None:
    """For one release, the former commands name the new ones."""
    done = installed.skylane("bench", "overhead", "--rounds", "1")
    assert done.returncode == 2
    assert "run `python -m bench` in a checkout" in done.stderr
    done = installed.skylane("model", "build", "road-small", "--train")
    assert done.returncode == 2
    assert "run `python -m training road-small` in a checkout" in done.stderr


def test_the_secured_broker_uses_the_settings_of_the_wheel(installed: Installation) -> None:
    """Other settings would be unreviewed."""
    show = (
        "from ops.broker.mosquitto import MosquittoListener, configuration; "
        "print(configuration('secured.conf', MosquittoListener('127.0.0.1', 1)))"
    )
    done = installed.run("-P", "-c", show)
    assert done.returncode == 0, done.stderr
    assert "\nlistener 1 127.0.0.1\ncafile /mosquitto/certs/ca.crt\n" in done.stdout
    assert "\nrequire_certificate true\n" in done.stdout
