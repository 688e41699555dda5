import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.baselines.noscope.drives import read_drive
from bench.baselines.noscope.rig import LOCAL as LOCAL_ORIGIN
from bench.baselines.noscope.rig import REFERENCE as REFERENCE_ORIGIN
from bench.baselines.noscope.rig import REUSED, Reproduction, RigSettings
from ops.processes.child import BenchError
from ops.processes.environment import BenchRun
from rosbag_tools.drive.recording import DrivePlan, record
from shared.reuse.tuning import read_tuning
from tests.bench.baselines.noscope.conftest import LOCAL, REFERENCE

FRAMES = 12


@pytest.fixture(scope="module")
def fixed_bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive of a fixed camera."""
    path = tmp_path_factory.mktemp("bags") / "fixed"
    record(path, DrivePlan(seed=920_001, frames=FRAMES, width=120, height=80, static_camera=True))
    return path


def _settings(models: Path, tuning: Path, **changed: float) -> RigSettings:
    found = read_tuning(tuning)
    if changed:
        assert found.gate is not None
        found = found.model_copy(update={"gate": found.gate.model_copy(update=changed)})
    return RigSettings(models, REFERENCE, LOCAL, (), 1.0, FRAMES, found, tuning)


def test_the_undistributed_system_asks_the_reference_about_every_frame(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path
) -> None:
    """The speed-up is relative to this system."""
    drive = read_drive(fixed_bag, FRAMES)
    with BenchRun() as run:
        servers = Reproduction(run, _settings(bright_models, bright_tuning), 1)
        found = servers.play(drive, 0, servers=1, reuse=False)
    assert found.origins == (REFERENCE_ORIGIN,) * FRAMES
    assert len(found.answers) == FRAMES
    assert found.parts_ms["compute_ms"] > 0


def test_a_frame_is_reused_only_for_the_longest_reuse(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path
) -> None:
    """With a threshold that all frames meet, every fourth frame gets an answer of its own, which the next three reuse."""
    drive = read_drive(fixed_bag, FRAMES)
    with BenchRun() as run:
        servers = Reproduction(run, _settings(bright_models, bright_tuning, mse=65_025.0), 2)
        found = servers.play(drive, 0, servers=2, reuse=True)
    assert [origin == REUSED for origin in found.origins] == [False, True, True, True] * (FRAMES // 4)
    assert set(found.origins) <= {REUSED, LOCAL_ORIGIN, REFERENCE_ORIGIN}
    for start in range(0, FRAMES, 4):
        assert len(set(found.answers[start : start + 4])) == 1


def test_a_bag_that_is_too_short_is_reported(fixed_bag: Path) -> None:
    """The message names the number of frames that can be played."""
    with pytest.raises(BenchError, match=f"--frames {FRAMES}"):
        read_drive(fixed_bag, FRAMES + 1)


@pytest.mark.mosquitto
def test_the_comparison_runs_to_its_end(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path, tmp_path: Path
) -> None:
    """All three systems answer all frames of the same bag, and the result is valid JSON."""
    flags = {
        "--bag": fixed_bag,
        "--models": bright_models,
        "--model": REFERENCE,
        "--local-model": LOCAL,
        "--tuning": bright_tuning,
        "--frames": FRAMES,
        "--servers": 2,
        "--inference-ms": 5,
        "--json": tmp_path / "noscope.json",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    done = subprocess.run(
        [sys.executable, "-m", "skylane", "bench", "baselines", "noscope", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "By drive" in done.stdout
    result = json.loads((tmp_path / "noscope.json").read_text(encoding="utf-8"))
    undistributed, *others = result["systems"].values()
    assert undistributed["by_drive"][0]["requests"] == FRAMES
    assert len(others) == 2
    for system in others:
        shares = (system["by_drive"][0][f"{origin}_share"] for origin in ("sent", "reused", "local"))
        assert sum(shares) == pytest.approx(1)
    assert result["drives"][0]["bag"] == fixed_bag.name
