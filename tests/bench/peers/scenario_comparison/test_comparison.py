from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.harness.sample_bag import SEED
from bench.peers.cli import peers
from bench.peers.load_comparison.plan import NAMES, OURS, Plan
from bench.peers.scenario_comparison import result
from bench.peers.scenario_comparison.comparison import run, ways
from bench.peers.scenario_comparison.scenarios import SCENARIOS
from cloud.models.repository import default_root
from rosbag_tools.drive.recording import DrivePlan as Recording
from rosbag_tools.drive.recording import record


def test_skylane_goes_through_every_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the scores of the direct call: also of pictures that the worker itself brings to the model's size."""
    monkeypatch.chdir(tmp_path)  # The pictures of mixed sizes are kept.
    record(tmp_path / "drive", Recording(seed=SEED, frames=2, width=484, height=304))
    plan = Plan(
        tmp_path / "drive", default_root(), "road-weather", (OURS,), rounds=1, frames=5, scenarios=tuple(SCENARIOS)
    )
    told: list[str] = []
    outcome = run(plan, told.append)
    found = result.result(plan, outcome)
    assert found["skipped"] == {}
    steps = [f"round 1 of 1, skylane {way}: {step}" for way in ("grpc", "mqtt") for step in ("starting", *SCENARIOS)]
    assert told[1:] == steps
    for name in SCENARIOS:
        for way in ("skylane grpc", "skylane mqtt"):
            cell = found["scenarios"][name][way]
            assert (cell["n"], cell["wrong_pixels"]) == (5, 0)
            assert cell["cpu_percent"] > 0
            assert cell["rss_mb"] > 100
    (cold, *_) = [each for each in outcome.runs if each.scenario == "cold_start"]
    calls_ms = [taken.total_ms for taken in cold.taken]
    assert calls_ms[0] > 2 * np.median(calls_ms), "the first call is a cold server's"


def test_each_server_has_a_way_over_tcp() -> None:
    """Shared memory is no way to a vehicle."""
    assert {name: ways(name) for name in NAMES} == {
        "skylane": ("grpc", "mqtt"),
        "triton": ("grpc",),
        "ray": ("http",),
        "bentoml": ("http",),
        "litserve": ("http",),
        "mlserver": ("grpc",),
        "grpcio": ("grpc",),
        "torchserve": ("http",),
    }


def test_pixels_are_no_pictures_of_a_scenario() -> None:
    """They have several sizes, which pixels do not tell."""
    said = CliRunner().invoke(peers, ["--scenario", "all", "--codec", "raw"])
    assert said.exit_code == 2
    assert "leave --codec raw out" in said.output
