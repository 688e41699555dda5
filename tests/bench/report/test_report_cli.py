"""`skylane report` as its user meets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.load.synthetic_run import Plan, write_run
from bench.report.cli import report
from bench.report.output import charts
from shared.runlog.latency_log import LogError
from tests.support.synthetic_study import write_study


def called(*arguments: object) -> Result:
    """The command, run in this process; errors of ours are raised as the front door would meet them."""
    return CliRunner().invoke(report, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_run_is_shown_and_its_page_written(run: Path, tmp_path: Path) -> None:
    """The tables at once, the page for whoever wants more."""
    ended = called(run, "--out", tmp_path / "page.html")
    assert ended.exit_code == 0
    assert "Latency by stage" in ended.output
    assert "400 frames read" in ended.output
    assert "page.html" in ended.output
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_page_lies_in_the_run(tmp_path: Path) -> None:
    """Where nobody says otherwise."""
    folder = write_run(tmp_path / "run", Plan(frames=30))
    other = write_run(tmp_path / "other", Plan(frames=30, seed=1, session="1" * 12))
    assert called(folder).exit_code == 0
    assert (folder / "report.html").exists()
    ended = called(folder, other)
    assert ended.exit_code == 0
    assert (folder / "comparison.html").exists()


def test_a_sound_run_passes_the_check(run: Path) -> None:
    """With how much was looked at."""
    ended = called(run, "--check")
    assert ended.exit_code == 0
    assert ": sound: 400 rows, " in ended.output


def test_a_broken_promise_fails_the_check(tmp_path: Path) -> None:
    """File, row and column are named, and a script can see it by the exit code."""
    folder = write_run(tmp_path / "run", Plan(frames=30, unanswered=0.0))
    path = folder / "latency.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:10] + lines[11:]), encoding="utf-8")
    ended = called(folder, "--check")
    assert ended.exit_code == 1
    assert "latency.csv" in ended.output
    assert ": not sound, " in ended.output


def test_json_holds_what_the_page_does(run: Path, slower: Path) -> None:
    """For a program; what is not known is null, which JSON has a word for, and never NaN."""
    ended = called(run, "--json")
    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    assert sum(told["outcomes"].values()) == 400
    assert {stage["name"] for stage in told["stages"]} >= {"inferred", "total"}
    assert told["statistics"]["total"]["p99_9"]["value"] is None
    assert told["problems"] == []
    assert told["manifest"]["session"]
    both = json.loads(called(run, slower, "--json").stdout)
    assert [one["name"] for one in both["runs"]] == ["first", "slower"]
    assert both["comparisons"][0]["verdict"] == "too few runs to tell (n = 1 and 1)"
    assert both["comparisons"][0]["p_value"] is None


def test_json_of_a_study(tmp_path: Path) -> None:
    """Its runs, and what each axis changes."""
    told = json.loads(called(write_study(tmp_path, frames=60), "--json").stdout)
    assert len(told["runs"]) == 8
    assert set(told["comparisons"]) == {"engine", "vehicles"}


def test_a_study_is_shown(tmp_path: Path) -> None:
    """Its results, what failed, and the sentences."""
    ended = called(write_study(tmp_path, frames=60))
    assert ended.exit_code == 0
    assert "road-huge" in ended.output
    assert "…" not in ended.output, "a cell that is cut short tells another name or number"
    assert "The intervals are on the page" in ended.output
    assert (tmp_path / "report.html").exists()


def test_tables_are_written_where_no_browser_is(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what is missing and how to get it; the tables do not wait for it."""
    monkeypatch.setattr(charts, "_BROWSERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("choreographer.browsers.chromium.Chromium.find_browser", lambda **_: None)
    ended = called(run, "--out", tmp_path / "page.html", "--tables", tmp_path / "tables")
    assert ended.exit_code == 0, ended.output
    assert "apt-get install chromium" in ended.output
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv", ".md", ".tex"}


def test_a_killed_run_is_repaired(tmp_path: Path) -> None:
    """What it left open is closed, once."""
    folder = write_run(tmp_path / "run", Plan(frames=30, unanswered=0.0))
    path = folder / "latency.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-3]), encoding="utf-8")
    ended = called(folder, "--repair")
    assert ended.output.startswith("3 frames of ")
    assert "aborted" in ended.output
    assert called(folder, "--repair").output.startswith("0 frames of ")


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    """In one line, by the front door."""
    with pytest.raises(LogError, match="give the folder of a run"):
        called(tmp_path / "nowhere")
