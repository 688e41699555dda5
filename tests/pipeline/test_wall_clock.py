"""Steps of the wall clock by an hour during a run, simulated for the vehicle's process by libfaketime."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.inference.model import Model
from shared.runlog.latency_log import read_rows
from tests.pipeline.rig import WAIT_S, check, pictures, worker
from tests.support.faults.wall_clock import LIBRARY, LIBRARY_MISSING, WallClock

HOUR_S = 3600

pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason=LIBRARY_MISSING),
    pytest.mark.mosquitto,
]


def test_a_step_changes_no_duration_of_a_run(
    mosquitto_url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vehicle may set its clock at its first GPS fix: no latency may jump or become negative."""
    out, wall = tmp_path / "car-stepped", WallClock(tmp_path / "wall-clock")
    wall.step(HOUR_S)
    assert abs(wall.shown_s() - HOUR_S) < WAIT_S, "libfaketime steps the clock of a process"
    wall.step(0)
    command = [
        sys.executable, "-m", "skylane", "edge", "play", str(pictures(tmp_path, 20)), "--broker", mosquitto_url, "--model",
        "tiny", "--vehicle", out.name, "--out", str(out), "--no-sinks", "--loop", "--closed-loop", "--frames", "30",
    ]  # fmt: skip
    steps = [(10, HOUR_S), (20, -HOUR_S)]  # Number of answers, and offset of the wall clock after them.
    with worker(mosquitto_url, model) as node:
        infer = model.infer

        def infer_and_step(images: Any) -> Any:
            if steps and node.counts.get("answered", 0) >= steps[0][0]:
                wall.step(steps.pop(0)[1])
            return infer(images)

        monkeypatch.setattr(model, "infer", infer_and_step)
        environment = {**os.environ, **wall.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not steps, "the clock was stepped twice"
    rows = list(read_rows(out))
    check(rows)
    assert [row["outcome"] for row in rows] == ["answered"] * 30
    due_ns = sorted(int(row["t_due_ns"]) for row in rows)
    assert all(later - earlier < WAIT_S * 1e9 for earlier, later in pairwise(due_ns))
    assert all(0 < float(row["total_ms"]) < WAIT_S * 1e3 for row in rows)
    offsets_ms = [float(row["clock_offset_ms"]) for row in rows]
    assert max(offsets_ms) - min(offsets_ms) < HOUR_S * 1e3 / 2, "neither clock may show the step"
