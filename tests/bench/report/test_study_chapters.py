"""The chapters that a study has beside those of runs: utilisation, bursts, and whether offloading pays."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.load.synthetic_run import Plan, write_run
from bench.logs.run_log import load_run
from bench.report.chapters.comparisons import offloading
from bench.report.chapters.comparisons.cost import Tariff
from bench.report.chapters.study import bursts, overhead, utilization
from bench.report.chapters.study import cells as study_chapters
from bench.report.content import Prose, Section, Table
from bench.report.data.report_input import Subject
from bench.report.data.study_log import StudyLog, load_study
from bench.report.document import of_study
from bench.report.output.json_data import plain

_SCENARIO = {"scenario": "offline"}


def _study(
    folder: Path, cells: Mapping[str, Mapping[str, Any]], slower_ms: Mapping[str, float], warm_up: int = 0
) -> Path:
    """A study of cells with their axes, three repetitions each; a cell's frames take `slower_ms` longer.

    The first `warm_up` of a run are so many times slower again.
    """
    runs, logs = [], []
    for name, axes in cells.items():
        for repetition in (1, 2, 3):
            facts: dict[str, Any] = {"study": "tiny", "cell": name, "repetition": repetition}
            plan = Plan(frames=24, seed=repetition, slower_ms=slower_ms.get(name, 0.0))
            log = load_run(write_run(folder / "cells" / name / str(repetition) / "vehicle-1", plan)).frames
            is_early = log["sequence"] < warm_up
            log.loc[is_early, "total_ms"] *= 10
            phase = {"vehicle_run": "vehicle-1", "phase": np.where(is_early, "warm_up", "measured")}
            logs.append(pd.concat([pd.DataFrame(facts | phase, log.index), log], axis=1))
            busy = 100.0 + repetition + (40.0 if slower_ms.get(name) else 0.0)
            figures = {"worker_cpu_percent": busy, "total_mean_ms": float(log["total_ms"].mean())}
            runs.append(facts | dict(axes) | {"state": "done", **figures, "source_sha256": "ab" * 32})
    pd.DataFrame(runs).to_csv(folder / "runs.csv", index=False)
    pd.concat(logs, ignore_index=True).to_parquet(folder / "frames.parquet", index=False)
    varied: Mapping[str, Sequence[Any]] = {
        axis: [axes[axis] for axes in cells.values()] for axis in next(iter(cells.values()))
    }
    (folder / "manifest.json").write_text(
        json.dumps({"kind": "study", "name": "tiny", "axes": varied}), encoding="utf-8"
    )
    return folder


def _rows(folder: Path, chapter: Callable[[StudyLog], Section | None], name: str = "") -> list[dict[str, Any]]:
    """The one table of a chapter, or that of a name, a map a row."""
    section = chapter(load_study(folder))
    assert section is not None
    (table,) = (part for part in section.parts if isinstance(part, Table) and name in ("", part.name))
    return [dict(zip((column.heading for column in table.columns), row, strict=True)) for row in table.rows]


def test_utilisation_is_tested_by_runs(tmp_path: Path) -> None:
    """A run's samples follow one another: by them alone every difference would be a sure one."""
    cells = {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}
    folder = _study(tmp_path, cells, {"b": 30.0})
    (row,) = _rows(folder, utilization.chapter, "utilisation_codec")
    assert (row["figure"], row["of"], row["against"]) == ("worker CPU %", "raw", "jpeg")
    assert (row["mean of"], row["mean against"], row["runs"]) == (142.0, 102.0, "3 and 3")
    assert (row["± of"], row["± against"]) == (1.0, 1.0)
    assert row["difference"].low == row["difference"].high == 40  # In every repetition alike.
    assert (row["verdict"], row["p"]) == ("higher", "< 0.001")


def test_latency_is_tested_by_repetition_and_sentence_table_and_json_agree(tmp_path: Path) -> None:
    """One verdict a question: a page said "too few" above p = 0.001 and beside p = 1.000."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {"b": 30.0})
    study = load_study(folder)
    section = study_chapters.axes(study)
    (sentence,) = (part.text for part in section.parts if isinstance(part, Prose))
    (row,) = _rows(folder, study_chapters.axes, "by_codec")
    medians = study.frames.groupby(["cell", "repetition"])["total_ms"].median()
    assert row["difference ms"].value == pytest.approx((medians["b"] - medians["a"]).mean())
    assert (row["verdict"], row["p"]) == ("higher", "< 0.001")
    assert sentence.startswith("raw took ")
    assert "paired t-test over 3 blocks" in sentence
    (told,) = plain(Subject(study=study))["comparisons"]["codec"]
    assert (told["verdict"], told["sentence"]) == (row["verdict"], sentence)
    assert told["p_value"] < 0.001


def test_overhead_and_inference_are_the_total_with_the_spread_of_the_runs(tmp_path: Path) -> None:
    """Means add up, where medians would not; and a figure without its n and its spread says nothing."""
    cells = {
        "a": {"codec": "jpeg", "link": "none"},
        "b": {"codec": "raw", "link": "none"},
        "c": {"codec": "raw", "link": "4g"},
    }
    folder = _study(tmp_path, cells, {"b": 30.0}, warm_up=4)
    rows = _rows(folder, overhead.chapter, "overhead")
    assert [(row["codec"], row["link"], row["runs"]) for row in rows] == [
        ("jpeg", "none", 3), ("raw", "none", 3), ("raw", "4g", 3)
    ]  # fmt: skip
    frames = load_study(folder).frames
    for row, name in zip(rows, cells, strict=True):
        assert row["total mean ms"] == pytest.approx(row["inferred mean ms"] + row["overhead mean ms"])
        of_cell = frames[frames["cell"] == name]
        assert row["frames"] == len(of_cell) <= 3 * 20
        by_run = [of_run["total_ms"].mean() for _, of_run in of_cell.groupby("repetition")]
        assert row["± total ms"] == pytest.approx(np.std(by_run, ddof=1))
    codecs = _rows(folder, overhead.chapter, "codecs")
    assert codecs[0]["bytes up"] == pytest.approx(frames.loc[frames["cell"] == "a", "bytes_up"].astype(float).mean())
    assert [row["total mean ms"] for row in codecs] == [row["total mean ms"] for row in rows]


def test_codecs_have_a_table_only_where_they_are_compared(tmp_path: Path) -> None:
    """Of one codec it would repeat the other table."""
    made = overhead.chapter(load_study(_study(tmp_path, {"a": {"link": "none"}, "b": {"link": "4g"}}, {})))
    assert made is not None
    assert [part.name for part in made.parts if isinstance(part, Table)] == ["overhead"]


def test_a_study_is_priced_by_its_own_tariff_with_the_spread_of_its_runs(tmp_path: Path) -> None:
    """Its file says what an hour costs; who reads the folder later should not have to know it."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    runs = pd.read_csv(folder / "runs.csv").assign(throughput_hz=[8.0, 10.0, 12.0, 4.0, np.nan, np.nan])
    runs.to_csv(folder / "runs.csv", index=False)
    assert "cost" not in {section.anchor for section in of_study(load_study(folder)).sections}
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tariff"] = {"price_per_hour": 1.25, "currency": "EUR", "footage_hz": 24}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (first, second) = _rows(folder, lambda log: of_study(log).sections[-1])
    prices = [1.25 * 24 * 24 / rate for rate in (8.0, 10.0, 12.0)]
    assert (first["run"], first["runs"], first["answered a second"]) == ("jpeg", 3, 10.0)
    assert (first["price EUR"], first["± EUR"]) == pytest.approx((prices[1], np.std(prices, ddof=1)))
    assert second["runs"] == 1
    assert np.isnan(second["± EUR"])


@pytest.mark.parametrize(
    "told",
    [None, 3, {}, *({"price_per_hour": price, "currency": "EUR", "footage_hz": 24} for price in ("dear", -1, np.inf))],
)
def test_a_tariff_that_cannot_be_read_is_none(told: object) -> None:
    """A manifest is a file, and a report that stops for it tells nothing."""
    assert Tariff.of({"tariff": told}) is None


def test_a_burst_is_split_and_sped_up_against_one_worker(tmp_path: Path) -> None:
    """The four terms must sum to what was measured, and the speed-up be of cells that are else the same."""
    cells = {"one": {**_SCENARIO, "workers": 1}, "two": {**_SCENARIO, "workers": 2}}
    one, two = _rows(_study(tmp_path, cells, {"one": 500.0}), bursts.chapter)
    for row in (one, two):
        assert sum(
            row[f"{term} ms"] for term in ("network", "client queue", "server queue", "compute")
        ) == pytest.approx(row["latency ms"])
    assert (one["workers"], two["workers"], one["runs"]) == (1, 2, 3)
    assert one["speed-up"] == 1
    assert one["± latency ms"] > 0
    assert two["speed-up"] == pytest.approx(one["latency ms"] / two["latency ms"], rel=0.2)
    assert two["speed-up"] > 1.5


def test_a_study_without_bursts_and_links_has_no_chapters_of_them(tmp_path: Path) -> None:
    """An empty table would look like a measurement."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    log = load_study(folder)
    assert (bursts.chapter(log), offloading.of_study(log)) == (None, None)


def test_a_link_is_set_against_none_and_tells_how_slow_a_vehicle_has_to_be(tmp_path: Path) -> None:
    """On one machine a link only adds; the answer is from which vehicle on it pays."""
    cells = {"here": {"codec": "raw", "link": "none"}, "far": {"codec": "raw", "link": "4g"}}
    cells |= {"other": {"codec": "jpeg", "link": "4g"}}  # Against nothing: no cell is else the same.
    folder = _study(tmp_path, cells, {"far": 80.0})
    (row,) = _rows(folder, offloading.of_study)
    assert row["offloaded"] == "raw · 4g"
    assert row["difference ms"].value == pytest.approx(80, abs=8)
    assert row["pays for a vehicle × slower"] == pytest.approx(1 + row["difference ms"].value / row["inference p50 ms"])


def test_what_warmed_up_tells_nothing_of_whether_offloading_pays(tmp_path: Path) -> None:
    """A worker's first frames are slow on either side, and would make any link look good beside them."""
    cells = {"here": {"codec": "raw", "link": "none"}, "far": {"codec": "raw", "link": "4g"}}
    (row,) = _rows(_study(tmp_path / "warm", cells, {"far": 80.0}), offloading.of_study)
    (same,) = _rows(_study(tmp_path / "cold", cells, {"far": 80.0}, warm_up=14), offloading.of_study)
    assert (row["frames"], same["frames"]) == (3 * 24 - 1, 3 * 10)  # One was lost.
    assert same["local p50 ms"].value == pytest.approx(row["local p50 ms"].value, rel=0.2)
    assert same["difference ms"].value == pytest.approx(80, abs=8)


def test_values_come_in_the_order_of_the_studys_file_and_the_first_is_what_others_are_held_to(tmp_path: Path) -> None:
    """Whoever writes `link: [none, 4g]` asks what the link adds, whatever the alphabet says."""
    cells = {"here": {"link": "none"}, "far": {"link": "4g"}, "farther": {"link": "3g"}}
    study = load_study(_study(tmp_path, cells, {}))
    assert [cell.name for cell in study.cells] == ["none", "4g", "3g"]
    assert [(a.name, b.name) for a, b in study.pairs("link")] == [("none", "4g"), ("none", "3g")]


def test_an_axis_without_a_value_of_its_own_in_some_cells_is_an_axis_like_others(tmp_path: Path) -> None:
    """`frames` may be given to some cells alone; those without are the same to each other, and numbers stay whole."""
    cells = {f"{w}.{n}": {"workers": w, "frames": n, **_SCENARIO} for n in (None, 49, 22) for w in (1, 2)}
    folder = _study(tmp_path, cells, {})
    study = load_study(folder)
    told = ("frames as said", "49 frames", "22 frames")
    assert [cell.name for cell in study.cells] == [f"{w} · {n}" for w in ("1 worker", "2 workers") for n in told]
    assert [(a.name, b.name) for a, b in study.pairs("workers")] == [
        (f"1 worker · {n}", f"2 workers · {n}") for n in told
    ]
    assert {a.settings["frames"] for a, _ in study.pairs("frames")} == {None}
    assert all(np.isfinite(row["speed-up"]) for row in _rows(folder, bursts.chapter))
    rows = _rows(folder, overhead.chapter, "overhead")
    assert [row["frames (axis)"] for row in rows] == 2 * ["as said", "49", "22"]  # Apart from how many were answered.
    assert all(row["frames"] == 3 * 24 - 1 for row in rows)  # One was lost.
    of_study(study)
