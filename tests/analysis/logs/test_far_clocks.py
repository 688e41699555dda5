"""Nodes whose clocks are decades apart: what the vehicle writes, the checks accept."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.logs.audit import audit
from analysis.logs.log_rows import read_log
from shared.clock import Offset
from shared.messages.msgpack_reader import MAX_NS
from shared.runlog.columns import milliseconds
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from shared.runlog.run_manifest import write_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run

_NOW_NS = 1_790_000_000_000_000_000
_STEP_NS = 1_000_000


def _row(offset_ns: int) -> LatencyRow:
    """Returns an answered frame of a vehicle whose clock is right, and a worker whose clock is ahead of it."""
    stages = [stage for stage in EDGE_STAGES if stage not in OPTIONAL_STAGES]
    edge = {stage: _NOW_NS + number * _STEP_NS for number, stage in enumerate(stages)}
    for stage in (Stage.RETURNED, Stage.MASK_DECODED):
        edge[stage] += 100 * _STEP_NS
    sent_ns = edge[Stage.SENT] + offset_ns
    return LatencyRow(
        vehicle="car",
        camera="/camera",
        session="s1",
        sequence=0,
        outcome=Outcome.ANSWERED,
        attempts=1,
        model="road",
        model_version="1",
        engine="tensorflow",
        worker="w1",
        worker_session="ws1",
        batch_size=1,
        bytes_up=1000,
        bytes_down=100,
        edge_times=edge,
        cloud_times={stage: sent_ns + _STEP_NS * (number + 1) for number, stage in enumerate(CLOUD_STAGES)},
        clock=Offset(offset_ns, 1000),
        dispatch="load",
    )


@pytest.mark.parametrize(
    "worker_ns", [0, 86_400 * 10**9, 10**18, _NOW_NS, MAX_NS - 10**9], ids=["0", "1970", "2001", "now", "latest"]
)
def test_a_clock_of_any_year_is_consistent(worker_ns: int, tmp_path: Path) -> None:
    """A board without a battery starts in 1970; the latest time is that of the wire."""
    row = _row(worker_ns - _NOW_NS)
    with LogWriter(tmp_path / "run") as log:
        log.open(replace(row, outcome=Outcome.ABORTED))
        log.close(row)
    counts = {outcome.value: int(outcome is Outcome.ANSWERED) for outcome in Outcome}
    facts = {"sha256": "a" * 64}
    write_manifest(
        tmp_path / "run",
        {"session": "s1", "state": "complete", "frames_read": 1, "outcomes": counts, "source": facts, "model": facts},
    )
    (offset_ns,) = read_log(tmp_path / "run").numbers["clock_offset_ms"].data.tolist()
    assert offset_ns == worker_ns - _NOW_NS
    assert [str(problem) for problem in audit(tmp_path / "run")] == []


def test_a_number_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    """Its nanoseconds would not fit into 64 bits."""
    run = write_run(tmp_path / "run", SyntheticRunPlan(frames=20))
    line = run_damage.line_of(run, "answered")
    run_damage.change(run, line, clock_offset_ms=milliseconds(9 * 10**18))
    assert any("is not a number of milliseconds" in str(problem) for problem in audit(run))
