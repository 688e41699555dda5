"""A comparison with a real peer; it is skipped if the peer's environment is not installed."""

from pathlib import Path

import pytest

from bench.harness.environment import SEED
from bench.peers.clients.client import PeerError
from bench.peers.load_comparison.comparison import run
from bench.peers.load_comparison.plan import Plan
from bench.peers.load_comparison.result import result
from bench.peers.rig.environments import environment
from cloud.models.repository import default_root
from rosbag_tools.drive.recording import DrivePlan as Recording
from rosbag_tools.drive.recording import record

PEER = "litserve"


def test_a_peer_answers_with_the_masks_of_the_direct_call(tmp_path: Path) -> None:
    """The comparison is only valid if the peer runs the same function on an undamaged image."""
    try:
        environment(PEER).check()
    except PeerError as error:
        pytest.skip(str(error))
    record(tmp_path / "drive", Recording(seed=SEED, frames=1, width=968, height=608))
    plan = Plan(tmp_path / "drive", default_root(), names=(PEER,), rounds=1, frames=4, clients=2, turn_s=1.0)
    progress: list[str] = []
    found = result(plan, run(plan, progress.append))
    assert found["skipped"] == {}
    assert "round 1 of 1, raw, litserve http" in progress
    for codec in plan.codecs:
        figures = found["cells"][codec]["litserve http"]
        assert figures["n"] == 4
        assert figures["wrong_pixels"] == 0
        assert figures["overhead_ms"]["min"] > 0
        assert figures["inference_ms"]["min"] > 0
