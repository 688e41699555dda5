"""Runs every benchmark once from the command line, with the smallest possible settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import BENCHES
from rosbag_tools.drive.recording import DrivePlan, record
from tests.pipeline.conftest import models
from tests.pipeline.rig import CLASSES, HEIGHT, WIDTH
from tests.support.local_models import write_segmentation

__all__ = ["models"]

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 600.0
_MODEL = ("--models", "{models}", "--model", "tiny")
_BAG = ("--bag", "{bag}")
_ARGUMENTS = {
    "baselines": (*_MODEL, *_BAG, "--frames", "2", "--rounds", "1", "--baseline", "mqtt"),
    "batch": (*_MODEL, "--rounds", "1", "--bags", "2", "--frames", "4", "--executor", "local"),
    "codecs": (*_MODEL, "--drive", "{bag}", "--frames", "4", "--quality", "85"),
    "engines": (*_MODEL, *_BAG, "--frames", "4", "--rounds", "1"),
    "failover": ("--rounds", "1", "--frames", "10", "--vehicles", "1", "--workers", "2", "--think-ms", "20"),
    "fleet": (
        "--rounds",
        "1",
        "--seconds",
        "4",
        "--vehicles",
        "2",
        "--worker-ms",
        "20",
        "--worker-ms",
        "20",
        "--seed",
        "1",
    ),
    "freshness": (
        "--models",
        "{models}",
        "--remote",
        "tiny",
        "--local",
        "local",
        "--drives",
        "1",
        "--frames",
        "24",
        "--outage-drives",
        "0",
        "--presenter",
        "hold",
    ),
    "gateway": (
        *_MODEL,
        "--seconds",
        "1",
        "--rounds",
        "1",
        "--clients",
        "2",
        "--transport",
        "mqtt",
        "--transport",
        "grpc",
    ),
    "link": ("--round-trips", "10"),
    "overhead": (*_MODEL, *_BAG, "--frames", "4", "--rounds", "1", "--isolate"),
    "peers": (*_MODEL, *_BAG, "--frames", "4", "--rounds", "1", "--clients", "2", "--codec", "jpeg"),
    "saturation": (*_MODEL, "--seconds", "1", "--rounds", "1", "--vehicles", "2", "--factor", "0.1"),
    "swap": (*_MODEL, "--swaps", "1", "--vehicles", "1", "--between", "1"),
    "tensorflow": (*_MODEL, "--rounds", "1", "--variant", "Session.run"),
    "tls": (*_MODEL, "--rounds", "1", "--frames", "2", "--messages", "8"),
    "transports": (*_MODEL, *_BAG, "--frames", "4", "--rounds", "1", "--transport", "mqtt", "--transport", "grpc"),
}
_WITHOUT_TABLES = {"peers"}  # The peers may not be installed.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs, so that sample bags are rendered once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def repository(models: Path) -> Path:
    """The model `tiny`, and one for the vehicle with the same labels."""
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
def test_a_benchmark_runs_to_its_end(name: str, repository: Path, bag: Path, place: Path) -> None:
    """The command succeeds, and its tables fit a terminal of 80 characters."""
    flags = [flag.format(models=repository, bag=bag) for flag in _ARGUMENTS[name]]
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
    assert done.stdout.strip()
    assert "…" not in done.stdout
    if name not in _WITHOUT_TABLES:
        rules = [line for line in done.stdout.splitlines() if "━" in line or "──" in line]
        assert rules, done.stdout
        assert max(map(len, rules)) <= 80
