"""Compares the report with examples/recompute/recompute.py, which computes its tables from the CSV."""

import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.logs.run_log import load_run
from analysis.offloading import throughput_hz
from analysis.report.content import ReportContent, ReportTable
from analysis.statistics.description import IntervalEstimate
from tests.support import simulated_study

EXAMPLE = Path(__file__).parents[3] / "examples" / "recompute" / "recompute.py"
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "latency-log.md"


@pytest.fixture
def recomputed(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The variables of the example after it processed the run."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(run)])
    names = runpy.run_path(str(EXAMPLE))
    assert "results a second" in capsys.readouterr().out
    return names


def table(report: ReportContent, name: str) -> ReportTable:
    """Returns a table of the report by its name."""
    (found,) = (table for table in report.tables() if table.name == name)
    return found


def test_the_tables_of_a_run_are_recomputed(report: ReportContent, recomputed: dict[str, Any]) -> None:
    """Values agree to the nanosecond; the intervals are not compared, because they need a bootstrap."""
    assert {row[0]: row[1] for row in table(report, "outcomes").rows} == recomputed["outcomes"].to_dict()
    stages = {str(row[0]): np.array(row[2:6], np.float64) for row in table(report, "stages").rows}
    assert len(stages) == 16
    for stage, values in stages.items():
        np.testing.assert_allclose(values, recomputed["stages"].loc[stage].to_numpy(np.float64), rtol=1e-12, atol=1e-9)
    order = ["count", "mean", "25%", "50%", "75%", "95%", "99%", "99.9%", "min", "max", "std"]
    rows = table(report, "statistics").rows
    assert len(rows) == 18
    for name, *cells in rows:
        shown = [cell.value if isinstance(cell, IntervalEstimate) else cell for cell in cells]
        expected = recomputed["statistics"].loc[name, order].to_numpy(np.float64)
        expected[order.index("99.9%")] = np.nan  # The report shows p99.9 from 1,000 frames on.
        np.testing.assert_allclose(np.array(shown, np.float64), expected, rtol=1e-12, atol=1e-9)
    slowest = [f"{row.vehicle} {row.camera} #{row.sequence}" for row in recomputed["slowest"].itertuples()]
    assert [row[0] for row in table(report, "slowest").rows] == slowest


def test_throughput_and_waterfall_are_recomputed(run: Path, report: ReportContent, recomputed: dict[str, Any]) -> None:
    """The stages of the waterfall sum to the mean total of the frames near the median."""
    assert throughput_hz(load_run(run)) == pytest.approx(recomputed["throughput_hz"], rel=1e-12)
    (waterfall,) = (chart for chart in report.charts() if chart.name == "waterfall")
    durations = {trace["name"]: trace["x"][0] for trace in waterfall.traces}
    expected = recomputed["journey"]
    assert durations == pytest.approx({name: expected[name] for name in durations}, rel=1e-12)
    assert sum(durations.values()) == pytest.approx(expected["total"], rel=1e-12)


def test_the_lines_of_the_reference_keep_stamps_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an empty field, pandas makes floats of stamps; it takes `NA` for a missing value, and a session for a number."""
    simulated_study.write_run(tmp_path / "NA", [0.0, 100.000001], [10.0, None], session="1234567e1234")
    code = textwrap.dedent(REFERENCE.read_text(encoding="utf-8").split("## Reading it\n\n")[1].split("\n\n")[0])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code.replace("runs/demo/latency.csv", "NA/latency.csv"), names)
    exact = load_run(tmp_path / "NA").frames
    for column in ("t_due_ns", "t_received_ns", "t_returned_ns", "vehicle", "session", "sequence"):
        assert names["log"][column].tolist() == exact[column].tolist()
    assert (names["log"].vehicle == "NA").all()
