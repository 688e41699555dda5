"""Values that no run or study has, in files that are whole: named where they can be, and never a traceback."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from bench.load.synthetic_run import Plan, write_run
from bench.report.chapters.comparisons.cost import Tariff
from bench.report.cli import report
from bench.report.content import Caution
from bench.report.data.report_input import open_subject
from bench.report.data.study_log import run_folders
from bench.report.document import ReportError, report_of, write_report
from bench.report.output.json_data import plain
from bench.report.output.page import render
from tests.support import run_damage
from tests.support.synthetic_study import write_study


def row_5(column: str, text: str) -> Callable[[Path], None]:
    """Damages the log in one cell."""

    def put(folder: Path) -> None:
        run_damage.change(folder, 5, **{column: text})

    return put


def in_manifest(old: str, new: str) -> Callable[[Path], None]:
    """Damages the manifest's text."""

    def put(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    return put


def no_time_at_all(folder: Path) -> None:
    """Every total is zero."""
    path = folder / "latency.csv"
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    place = header.split(",").index("total_ms")
    cut = [row.split(",") for row in rows]
    changed = [",".join([*row[:place], "0.000000" if row[place] else "", *row[place + 1 :]]) for row in cut]
    path.write_text("\n".join([header, *changed, ""]), encoding="utf-8")


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a frame due in 1970": row_5("t_due_ns", "0"),
    "a frame of thirty years": row_5("total_ms", "999999999999.999999"),
    "a bag named by half a character": in_manifest("drive-2026", "\\ud800"),
    "a setting that is no number": in_manifest('"window": 4', '"window": NaN'),
    "a start that no clock shows": in_manifest('"started_ns": ', f'"started_ns": {"9" * 400}'),
    "totals of zero": no_time_at_all,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_values_that_no_run_has_do_not_end_the_report(tmp_path: Path, what: str) -> None:
    """They have been memory errors and tracebacks: a figure of them may be useless, the rest is not."""
    folder = write_run(tmp_path / "run", Plan(frames=60))
    HOSTILE[what](folder)
    assert write_report([folder]).stat().st_size
    assert json.dumps(plain(open_subject([folder])), allow_nan=False)


def changed(name: str, **columns: Any) -> Callable[[Path], None]:
    """Puts other values into a column of a study's table."""

    def put(folder: Path) -> None:
        path = folder / name
        if path.suffix == ".csv":
            pd.read_csv(path).assign(**columns).to_csv(path, index=False)
        else:
            pd.read_parquet(path).assign(**columns).to_parquet(path, index=False)

    return put


def holding(name: str, data: bytes) -> Callable[[Path], None]:
    """Puts other bytes into a file of a study."""

    def put(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return put


def cut(folder: Path) -> None:
    """The table of runs ends within a row."""
    path = folder / "runs.csv"
    path.write_bytes(path.read_bytes()[:-20])


STUDIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a run cut short": (cut, "runs.csv, row 9: is cut short"),
    "runs without number": (changed("runs.csv", repetition=[*"xx345678"]), "runs.csv, row 2, column repetition: is no number"),
    "runs without end": (changed("runs.csv", repetition=["inf", *"2345678"]), "runs.csv, row 2, column repetition: is no number"),
    "runs below none": (changed("runs.csv", repetition=["-1", *"2345678"]), "runs.csv, row 2: cell, repetition, state do not say"),
    "throughput in words": (changed("runs.csv", throughput_hz="fast"), "runs.csv, row 2, column throughput_hz: is no number"),
    "times in words": (changed("frames.parquet", total_ms="x"), "frames.parquet: cannot be read ("),
    "a search of garbage": (holding("capacity.csv", b"\xff\xfe"), "capacity.csv: is no table"),
    "a search of something else": (holding("capacity.csv", b"a,b\n1,2\n"), "capacity.csv: row 1 has no column cell"),
}  # fmt: skip


@pytest.mark.parametrize("what", STUDIES)
def test_a_broken_table_of_a_study_is_named_and_the_rest_reported(tmp_path: Path, what: str) -> None:
    """By its file, row and column, on the page and on the terminal; it has been a traceback."""
    folder = write_study(tmp_path, frames=40)
    harm, said = STUDIES[what]
    harm(folder)
    subject = open_subject([folder])
    assert any(f"{folder}/{said}" in str(problem) for problem in subject.problems)
    made = report_of(subject, Tariff(1.0))
    cautions = [part.text for section in made.sections for part in section.parts if isinstance(part, Caution)]
    assert any(said in text for text in cautions)
    assert render(made)
    assert json.dumps(plain(subject), allow_nan=False)


def test_cells_may_be_named_by_numbers(tmp_path: Path) -> None:
    """A study of one axis, the number of vehicles, say, has no letter in them."""
    folder = write_study(tmp_path, frames=40)
    for name in ("runs.csv", "frames.parquet"):
        changed(name, cell=lambda table: table["cell"].rank(method="dense").astype(int).astype(str))(folder)
    assert "cells_p50" in {chart.name for chart in report_of(open_subject([folder])).charts()}


def test_no_axis_names_a_file_elsewhere(tmp_path: Path) -> None:
    """`--tables` writes into its folder, whatever a manifest holds."""
    folder = write_study(tmp_path, frames=40)
    axis = "../../engine"
    changed("runs.csv", **{axis: lambda table: table["engine"]})(folder)
    in_manifest('"engine"', json.dumps(axis))(folder)
    made = report_of(open_subject([folder]))
    assert "by__engine" in {table.name for table in made.tables()}
    assert not any(
        "/" in name for name in [part.name for part in made.tables()] + [part.name for part in made.charts()]
    )


def test_half_a_page_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk: it would open, and look like all of the report."""
    folder = write_run(tmp_path / "run", Plan(frames=30))

    def fill(path: Path, text: str, **_: Any) -> int:
        path.write_bytes(text[:100].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(ReportError, match="No space left on device: choose another --out"):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_the_check_of_a_study_is_of_all_its_runs(tmp_path: Path) -> None:
    """A study is as sound as the logs it stands on."""
    folder = write_study(tmp_path, frames=40)
    runs = run_folders(folder)
    assert len(runs) == 6
    assert CliRunner().invoke(report, [str(folder), "--check"]).exit_code == 0
    run_damage.change(runs[3], 5, inferred_ms="soon")
    ended = CliRunner().invoke(report, [str(folder), "--check"])
    assert ended.exit_code == 1
    assert f"{runs[3]}/latency.csv, row 5, column inferred_ms: 'soon' is no number" in ended.output
