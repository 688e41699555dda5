import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analysis.report.cli import report
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study


def run_report(*arguments: object) -> Result:
    """Runs the command in this process; errors are raised."""
    return CliRunner().invoke(report, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_run_is_shown_on_the_terminal_and_as_a_page(tmp_path: Path) -> None:
    """The terminal shows the tables of outcomes and stages; a comparison is written into the first of several runs."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30))
    ended = run_report(folder)
    assert ended.exit_code == 0
    assert "Latency by stage" in ended.output
    assert "30 frames read" in ended.output
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    other = write_run(tmp_path / "other", SyntheticRunPlan(frames=30, session="50e551014ab1"))
    ended = run_report(folder, other, "--out", tmp_path / "page.html")
    assert ended.exit_code == 0
    assert "page.html" in ended.output
    assert run_report(folder, other).exit_code == 0
    assert (folder / "comparison.html").exists()


def test_a_missing_row_fails_the_check(tmp_path: Path) -> None:
    """The output has the numbers of rows and checks or names the file, and the exit code is 0 or 1."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30, unanswered=0.0))
    ended = run_report(folder, "--check")
    assert ended.exit_code == 0
    assert ": consistent: 30 rows, " in ended.output
    path = folder / "latency.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:10] + lines[11:]), encoding="utf-8")
    ended = run_report(folder, "--check")
    assert ended.exit_code == 1
    assert "latency.csv" in ended.output
    assert ": not consistent, " in ended.output


def test_json_has_the_results_of_the_page(tmp_path: Path) -> None:
    """Values that were not measured are null, never NaN."""
    run = write_run(tmp_path / "first", SyntheticRunPlan(frames=40))
    slower = write_run(tmp_path / "slower", SyntheticRunPlan(frames=40, seed=1, session="50e551014ab1", slower_ms=40))
    ended = run_report(run, "--json")
    assert ended.exit_code == 0
    document = json.loads(ended.stdout)
    assert sum(document["outcomes"].values()) == 40
    assert {stage["name"] for stage in document["stages"]} >= {"inferred", "total"}
    assert document["statistics"]["total"]["p99_9"]["value"] is None
    assert document["problems"] == []
    assert document["manifest"]["session"]
    both = json.loads(run_report(run, slower, "--json").stdout)
    assert [one["name"] for one in both["runs"]] == ["first", "slower"]
    assert both["comparisons"][0]["verdict"] == "too few runs for a test (n = 1 and 1)"
    assert both["comparisons"][0]["p_value"] is None


def test_json_of_a_study_has_its_runs_and_a_comparison_for_each_axis(tmp_path: Path) -> None:
    """The axes are the keys of the comparisons."""
    document = json.loads(run_report(write_study(tmp_path, frames=60), "--json").stdout)
    assert len(document["runs"]) == 8
    assert set(document["comparisons"]) == {"engine", "vehicles"}


def test_a_study_is_shown_on_the_terminal(tmp_path: Path) -> None:
    """The terminal shows results, failed runs and comparison sentences."""
    ended = run_report(write_study(tmp_path, frames=60))
    assert ended.exit_code == 0
    assert "road-huge" in ended.output
    assert "…" not in ended.output, "a truncated cell would show another name or number"
    assert "The HTML report has the intervals" in ended.output
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("missing", "remedy"), [("browser", "apt-get install chromium"), ("kaleido", "skylane[figures]")]
)
def test_tables_and_page_are_written_without_a_browser_or_kaleido(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, remedy: str
) -> None:
    """The charts are missing, and a message explains what to install."""
    if missing == "kaleido":
        monkeypatch.setitem(sys.modules, "kaleido", None)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("choreographer.browsers.chromium.Chromium.find_browser", lambda **_: None)
    run = write_run(tmp_path / "run", SyntheticRunPlan(frames=30))
    ended = run_report(run, "--out", tmp_path / "page.html", "--tables", tmp_path / "tables")
    assert ended.exit_code == 0, ended.output
    assert remedy in ended.output
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv", ".md", ".tex"}
    assert (tmp_path / "page.html").exists()


def test_a_killed_run_is_repaired(tmp_path: Path) -> None:
    """Open frames are closed by the first repair; the second one finds none."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30, unanswered=0.0))
    path = folder / "latency.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-3]), encoding="utf-8")
    ended = run_report(folder, "--repair")
    assert ended.output.startswith("3 open frames of ")
    assert "aborted" in ended.output
    assert run_report(folder, "--repair").output.startswith("0 open frames of ")
