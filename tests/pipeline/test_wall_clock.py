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
# Prints the elapsed time by the wall clock and by `shared.clock` for each line on standard input.
_STEPPED = """
import sys, time
from shared import clock
def read():
    return time.time(), clock.now_ns() / 1e9
start = read()
for line in sys.stdin:
    wall_s, clock_s = (now - then for now, then in zip(read(), start))
    print(f"{wall_s:.3f} {clock_s:.3f}", flush=True)
"""

pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason=LIBRARY_MISSING),
    pytest.mark.mosquitto,
]


@pytest.fixture
def wall(tmp_path: Path) -> WallClock:
    """Returns a wall clock without a step."""
    return WallClock(tmp_path / "wall-clock")


def test_the_monotonic_clock_ignores_a_real_step(wall: WallClock) -> None:
    """This validates the method of the next test."""
    with subprocess.Popen(
        [sys.executable, "-c", _STEPPED],
        env={**os.environ, **wall.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step_s in (0, HOUR_S, -HOUR_S):
            wall.step(step_s)
            process.stdin.write("now\n")
            process.stdin.flush()
            wall_s, clock_s = map(float, process.stdout.readline().split())
            assert 0 <= clock_s < WAIT_S
            assert step_s <= wall_s < step_s + WAIT_S
        process.stdin.close()


def test_a_step_changes_no_duration_of_a_run(
    *, mosquitto_url: str, model: Model, tmp_path: Path, wall: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vehicle may set its clock at its first GPS fix: no latency may jump or become negative."""
    out = tmp_path / "car-stepped"
    command = [
        sys.executable, "-m", "skylane", "edge", "play", str(pictures(tmp_path, 20)), "--broker", mosquitto_url, "--model",
        "tiny", "--vehicle", out.name, "--out", str(out), "--no-sinks", "--loop", "--closed-loop", "--frames", "60",
    ]  # fmt: skip
    steps = [(20, HOUR_S), (40, -HOUR_S)]  # Number of answers, and offset of the wall clock after them.
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
    assert [row["outcome"] for row in rows] == ["answered"] * 60
    due_ns = sorted(int(row["t_due_ns"]) for row in rows)
    assert all(later - earlier < WAIT_S * 1e9 for earlier, later in pairwise(due_ns))
    assert all(0 < float(row["total_ms"]) < WAIT_S * 1e3 for row in rows)
    offsets_ms = [float(row["clock_offset_ms"]) for row in rows]
    assert max(offsets_ms) - min(offsets_ms) < HOUR_S * 1e3 / 2, "neither clock may show the step"
