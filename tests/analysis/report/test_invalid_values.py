"""Tests of reports from complete files with impossible values."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from analysis.report.chapters.comparisons.cost import Tariff
from analysis.report.cli import report
from analysis.report.content import Caution
from analysis.report.data.report_input import load_report_input, run_folders
from analysis.report.document import report_of, write_report
from analysis.report.results import report_json
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study


def in_row_5(column: str, text: str) -> Callable[[Path], None]:
    """Replaces a cell in row 5 of the log."""

    def put(folder: Path) -> None:
        run_damage.change(folder, 5, **{column: text})

    return put


def in_manifest(old: str, new: str) -> Callable[[Path], None]:
    """Replaces text in the manifest."""

    def put(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    return put


def zero_totals(folder: Path) -> None:
    """Sets every total to zero."""
    path = folder / "latency.csv"
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    column = header.split(",").index("total_ms")
    fields = [row.split(",") for row in rows]
    zeros = [",".join([*row[:column], "0.000000" if row[column] else "", *row[column + 1 :]]) for row in fields]
    path.write_text("\n".join([header, *zeros, ""]), encoding="utf-8")


INVALID_VALUES: dict[str, Callable[[Path], None]] = {
    "a frame due in 1970": in_row_5("t_due_ns", "0"),
    "a total of thirty years": in_row_5("total_ms", "999999999999.999999"),
    "a lone surrogate in the name of the bag": in_manifest("drive-2026", "\\ud800"),
    "a setting that is NaN": in_manifest('"window": 4', '"window": NaN'),
    "a start time beyond 64 bits": in_manifest('"started_ns": ', f'"started_ns": {"9" * 400}'),
    "totals of zero": zero_totals,
}


@pytest.mark.parametrize("what", INVALID_VALUES)
def test_impossible_values_in_a_run_do_not_prevent_its_report(tmp_path: Path, what: str) -> None:
    """These values once caused memory errors and tracebacks."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=60))
    INVALID_VALUES[what](folder)
    assert write_report([folder]).stat().st_size
    assert json.dumps(report_json(load_report_input([folder])), allow_nan=False)


def changed(name: str, **columns: Any) -> Callable[[Path], None]:
    """Replaces columns of a study's table."""

    def put(folder: Path) -> None:
        path = folder / name
        if path.suffix == ".csv":
            pd.read_csv(path).assign(**columns).to_csv(path, index=False)
        else:
            pd.read_parquet(path).assign(**columns).to_parquet(path, index=False)

    return put


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    """Replaces a file of a study."""

    def put(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return put


def truncated(folder: Path) -> None:
    """Removes the end of the table of runs."""
    path = folder / "runs.csv"
    path.write_bytes(path.read_bytes()[:-20])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study; tests must not change it."""
    return write_study(tmp_path_factory.mktemp("study") / "whole", frames=40)


@pytest.fixture
def study(whole: Path, tmp_path: Path) -> Path:
    """A copy of the study that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "study"))


STUDIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a truncated row": (truncated, "runs.csv, row 9: the line is truncated"),
    "repetitions that are text": (changed("runs.csv", repetition=[*"xx345678"]), "runs.csv, row 2, column repetition: is not a number"),
    "an infinite repetition": (changed("runs.csv", repetition=["inf", *"2345678"]), "runs.csv, row 2, column repetition: is not a number"),
    "a negative repetition": (changed("runs.csv", repetition=["-1", *"2345678"]), "runs.csv, row 2: has no valid cell, repetition and state"),
    "throughput as text": (changed("runs.csv", throughput_hz="fast"), "runs.csv, row 2, column throughput_hz: is not a number"),
    "times as text": (changed("frames.parquet", total_ms="x"), "frames.parquet: cannot be read ("),
    "a binary capacity table": (replaced("capacity.csv", b"\xff\xfe"), "capacity.csv: is not a table"),
    "a capacity table with other columns": (replaced("capacity.csv", b"a,b\n1,2\n"), "capacity.csv: row 1 has no column cell"),
}  # fmt: skip


@pytest.mark.parametrize("what", STUDIES)
def test_a_broken_table_of_a_study_is_named_and_the_rest_is_reported(study: Path, what: str) -> None:
    """The page names file, row and column; these tables once caused tracebacks."""
    damage_study, expected = STUDIES[what]
    damage_study(study)
    source = load_report_input([study])
    assert any(f"{study}/{expected}" in str(problem) for problem in source.problems)
    made = report_of(source, Tariff(1.0))
    cautions = [part.text for chapter in made.chapters for part in chapter.parts if isinstance(part, Caution)]
    assert any(expected in text for text in cautions)
    assert json.dumps(report_json(source), allow_nan=False)


def test_names_of_cells_can_be_numbers(study: Path) -> None:
    """The only axis of a study can be a number, such as the batch size."""
    for name in ("runs.csv", "frames.parquet"):
        changed(name, cell=lambda table: table["cell"].rank(method="dense").astype(int).astype(str))(study)
    assert "cells_p50" in {chart.name for chart in report_of(load_report_input([study])).charts()}


def test_the_name_of_an_axis_cannot_place_files_in_another_folder(study: Path) -> None:
    """`--tables` must write into its folder only, even for a manipulated manifest."""
    axis = "../../engine"
    changed("runs.csv", **{axis: lambda table: table["engine"]})(study)
    in_manifest('"engine"', json.dumps(axis))(study)
    made = report_of(load_report_input([study]))
    assert "by__engine" in {table.name for table in made.tables()}
    assert not any(
        "/" in name for name in [part.name for part in made.tables()] + [part.name for part in made.charts()]
    )


def test_the_check_of_a_study_includes_all_its_runs(study: Path) -> None:
    """The problem is in a single run of the study."""
    runs = run_folders(study)
    assert len(runs) == 6
    assert CliRunner().invoke(report, [str(study), "--check"]).exit_code == 0
    run_damage.change(runs[3], 5, inferred_ms="soon")
    ended = CliRunner().invoke(report, [str(study), "--check"])
    assert ended.exit_code == 1
    assert f"{runs[3]}/latency.csv, row 5, column inferred_ms: 'soon' is not a number" in ended.output
