"""Runs every benchmark once with the smallest possible settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import BENCHES, bench
from bench.peers.rig import NETWORK_VARIABLE
from rosbag_tools.drive.recording import DrivePlan, record
from tests.pipeline.conftest import models
from tests.pipeline.rig import CLASSES, HEIGHT, WIDTH
from tests.support.local_models import write_segmentation

__all__ = ["models"]

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 600.0
_MODEL = "--models {models} --model {model}"
_ARGUMENTS = {
    "baselines": f"{_MODEL} --bag {{bag}} --frames 2 --rounds 1 --baseline mqtt",
    "batch": f"{_MODEL} --rounds 1 --bags 2 --frames 4 --executor local",
    "codecs": f"{_MODEL} --drive {{bag}} --frames 4 --quality 85",
    "failover": "--rounds 1 --frames 10 --vehicles 1 --workers 2 --think-ms 20",
    "fleet": "--rounds 1 --seconds 4 --vehicles 2 --worker-ms 20 --worker-ms 20 --seed 1",
    "freshness": "--models {models} --remote {model} --local local --drives 1 --frames 24 --outage-drives 0 --presenter hold",
    "gateway": f"{_MODEL} --seconds 1 --rounds 1 --clients 2 --transport mqtt --transport grpc",
    "overhead": f"{_MODEL} --bag {{bag}} --frames 4 --rounds 1 --isolate",
    "peers": f"litserve {_MODEL} --bag {{bag}} --frames 4 --rounds 1 --clients 2 --codec jpeg",
    "saturation": f"{_MODEL} --seconds 1 --rounds 1 --vehicles 2 --factor 0.1",
    "tensorflow": f"{_MODEL} --rounds 1 --variant Session.run",
    "tls": f"{_MODEL} --rounds 1 --frames 2 --messages 8",
}
_OF_TENSORFLOW = {"baselines", "peers", "tensorflow"}  # Their subject is a graph of TensorFlow.
_WITHOUT_TABLES = {"peers"}  # The peers may not be installed.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs, so that sample bags are rendered once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def repository(models: Path) -> Path:
    """The model `tiny`, a frozen graph, and `local` with the same labels, which needs no TensorFlow."""
    write_segmentation(models, "local", HEIGHT // 2, WIDTH // 2, CLASSES)
    return models


@pytest.fixture(scope="module")
def bag(place: Path) -> Path:
    """A synthetic drive of small images."""
    record(place / "drive", DrivePlan(seed=1, frames=4, width=256, height=160))
    return place / "drive"


def test_every_benchmark_has_a_smoke_test() -> None:
    """A new benchmark must be added to this module."""
    assert set(_ARGUMENTS) == set(BENCHES)


@pytest.mark.mosquitto
@pytest.mark.parametrize("name", _ARGUMENTS)
def test_a_benchmark_runs_to_its_end(
    name: str, repository: Path, bag: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command succeeds, and its tables fit a terminal of 80 characters."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(
        NETWORK_VARIABLE, "own"
    )  # LitServe needs no network of its own, for which `peers` executes itself.
    model = "tiny" if name in _OF_TENSORFLOW else "local"
    flags = [flag.format(models=repository, model=model, bag=bag) for flag in _ARGUMENTS[name].split()]
    done = CliRunner().invoke(bench, [name, *flags], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    _check(name, done.stdout)


@pytest.mark.mosquitto
@pytest.mark.bench_rounds
@pytest.mark.parametrize("name", _ARGUMENTS)
def test_a_benchmark_runs_as_a_command(name: str, repository: Path, bag: Path, place: Path) -> None:
    """The same in a new process, with a model of TensorFlow."""
    flags = [flag.format(models=repository, model="tiny", bag=bag) for flag in _ARGUMENTS[name].split()]
    flags = [flag for flag in flags if flag != "litserve"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, *flags],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    _check(name, done.stdout)


def _check(name: str, printed: str) -> None:
    """Checks that tables were printed, and that none is wider than the terminal."""
    assert printed.strip()
    assert "…" not in printed
    if name not in _WITHOUT_TABLES:
        rules = [line for line in printed.splitlines() if "━" in line or "──" in line]
        assert rules, printed
        assert max(map(len, rules)) <= 80
