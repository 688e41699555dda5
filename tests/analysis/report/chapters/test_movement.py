"""The table of outputs that were moved to their tick, and of the reasons why others were not."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.report.content import ReportTable
from analysis.report.data.report_input import load_report_input
from analysis.report.document import report_of
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, PresentedLog, PresentedRow, read_presented
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run, write_truth


def _changed(row: PresentedRow) -> PresentedRow:
    """Makes some ticks those of a presenter that had no time for the flow, or no result of a worker."""
    if row.tick in range(5, 9):
        return replace(row, origin=OutputOrigin.REMOTE, flow="none")
    if row.tick in range(9, 11):
        return replace(row, origin=OutputOrigin.LOCAL, flow="", age_ns=0, source_sequence=None)
    return replace(row, origin=OutputOrigin.REMOTE, flow="", age_ns=0) if row.tick == 11 else row


def _tables(folder: Path) -> dict[str, ReportTable]:
    report = report_of(load_report_input([folder], truths=[folder.parent / "truth"]))
    return {table.name: table for table in report.tables()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a presenter; 18 of its 20 ticks have an output."""
    write_truth(tmp_path / "truth", range(20))
    return write_streaming_run(tmp_path / "run", StreamingRunPlan(warped={tick: tick for tick in range(2, 20)}))


def test_outputs_that_were_not_moved_have_their_reason(run: Path) -> None:
    """Without it, a reader cannot tell a slow machine from a worker that is too slow."""
    rows = [_changed(row) for row in read_presented(run)]
    (run / PRESENTED_NAME).unlink()
    with PresentedLog(run) as log:
        for row in rows:
            log.write(row)
    table = _tables(run)["streaming_movement"]
    found = {(row[0], str(row[3]).split(":")[0]): row[1] for row in table.rows}
    assert found == {
        ("moved", "by optical flow, computed at a half of the size"): 11,
        ("not moved", "no optical flow"): 4,
        ("not moved", "by the local model alone"): 2,
        ("not moved", "the result of the tick's own frame had arrived"): 1,
    }


def test_a_run_that_only_holds_has_no_such_table(run: Path) -> None:
    """Holding moves nothing, so there is nothing to explain."""
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"warp"', '"hold"'), encoding="utf-8")
    assert "streaming_movement" not in _tables(run)
