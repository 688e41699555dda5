from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.harness.environment import SEED
from bench.peers.cli import peers
from bench.peers.load_comparison.plan import NAMES, OURS, Plan
from bench.peers.scenario_comparison import result
from bench.peers.scenario_comparison.comparison import run, ways
from bench.peers.scenario_comparison.scenarios import SCENARIOS
from cloud.models.repository import default_root
from rosbag_tools.drive.recording import DrivePlan as Recording
from rosbag_tools.drive.recording import record


def test_skylane_completes_every_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores equal those of the direct call, also for images that the worker itself resizes."""
    monkeypatch.chdir(tmp_path)  # The images of mixed sizes are written to this folder.
    record(tmp_path / "drive", Recording(seed=SEED, frames=2, width=484, height=304))
    plan = Plan(
        tmp_path / "drive", default_root(), "road-weather", (OURS,), rounds=1, frames=5, scenarios=tuple(SCENARIOS)
    )
    progress: list[str] = []
    outcome = run(plan, progress.append)
    found = result.result(plan, outcome)
    assert found["skipped"] == {}
    steps = [
        f"round 1 of 1, skylane {transport}: {step}"
        for transport in ("grpc", "mqtt")
        for step in ("starting", *SCENARIOS)
    ]
    assert progress[1:] == steps
    for name in SCENARIOS:
        for endpoint in ("skylane grpc", "skylane mqtt"):
            cell = found["scenarios"][name][endpoint]
            assert (cell["n"], cell["wrong_pixels"]) == (5, 0)
            assert cell["cpu_percent"] > 0
            assert cell["rss_mb"] > 100
    (cold, *_) = [each for each in outcome.runs if each.scenario == "cold_start"]
    calls_ms = [taken.total_ms for taken in cold.taken]
    assert calls_ms[0] > 2 * np.median(calls_ms), "the first call is a cold server's"


def test_each_server_has_a_transport_over_tcp() -> None:
    """Shared memory is left out, because a vehicle cannot use it to reach a server."""
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


def test_a_scenario_refuses_raw_frames() -> None:
    """The images of a scenario have several sizes, which raw pixels do not contain."""
    response = CliRunner().invoke(peers, ["--scenario", "all", "--codec", "raw"])
    assert response.exit_code == 2
    assert "leave --codec raw out" in response.output
