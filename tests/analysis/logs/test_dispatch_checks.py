"""Checks of the column `dispatch`."""

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs.audit import audit
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two workers, to which frames were sent by load and by the group."""
    return write_run(tmp_path / "run", SyntheticRunPlan(frames=60, workers=2, unanswered=0.2))


def test_a_run_with_both_ways_of_dispatch_is_consistent(run: Path) -> None:
    """Dropped frames have none."""
    assert audit(run) == ()


@pytest.mark.parametrize(
    ("outcome", "dispatch", "expected"),
    [
        ("answered", "", "is empty, but the frame was sent"),
        ("answered", "random", "is not one of load, group"),
        ("dropped", "load", "is given, but the frame was not sent"),
    ],
)
def test_a_dispatch_that_does_not_fit_its_frame_is_named(run: Path, outcome: str, dispatch: str, expected: str) -> None:
    """A tool that fills the column with a constant would spoil the comparison of both ways."""
    line = run_damage.line_of(run, outcome)
    run_damage.change(run, line, dispatch=dispatch)
    assert [str(problem) for problem in audit(run)] == [f"{run}/latency.csv, row {line}, column dispatch: {expected}"]


def test_a_run_without_a_broker_has_no_dispatch(run: Path) -> None:
    """With gRPC or HTTP, the vehicle calls the workers itself."""
    manifest = json.loads((run / "manifest.json").read_text())
    run_damage.change_manifest(run, configuration=manifest["configuration"] | {"transport": "grpc"})
    assert "is given, but the run had no broker" in str(audit(run)[0])


def test_logs_of_earlier_versions_lack_the_column(run: Path) -> None:
    """Every frame of theirs was sent to the group."""
    for name in ("latency.csv", "latency.journal"):
        log = pd.read_csv(run / name, dtype=str, keep_default_na=False, header=0 if name == "latency.csv" else None)
        log.iloc[:, :-1].to_csv(run / name, index=False, header=name == "latency.csv")
    assert audit(run) == ()
