import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_log import load_run
from analysis.report.chapters.comparisons import offloading
from analysis.report.chapters.comparisons.cost import Tariff
from analysis.report.chapters.streaming import AT_TICK
from analysis.report.chapters.study import accuracy, bursts, overhead, utilization
from analysis.report.chapters.study import cells as study_chapters
from analysis.report.content import Chapter, Paragraph, ReportContent, ReportTable
from analysis.report.data.report_input import ReportInput, StudyLog, load_study
from analysis.report.document import report_of
from analysis.report.results import report_json
from shared.runlog.columns import ADDED
from shared.runlog.latency_log import Outcome
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study

_SCENARIO = {"scenario": "offline"}


@cache
def _frames(plan: SyntheticRunPlan) -> pd.DataFrame:
    """Returns the log of a run."""
    with TemporaryDirectory() as folder:
        return load_run(write_run(Path(folder) / "run", plan)).frames


def _study(
    folder: Path,
    cells: Mapping[str, Mapping[str, Any]],
    slower_ms: Mapping[str, float],
    warm_up: int = 0,
    reused: Collection[str] = (),
) -> Path:
    """Writes a study with three repetitions of each cell; `slower_ms` delays the frames of a cell.

    Most frames of the cells `reused` get the result of an earlier frame.

    The first `warm_up` frames of each run belong to the warm-up phase and take ten times as long.
    """
    runs, logs = [], []
    for name, axes in cells.items():
        for repetition in (1, 2, 3):
            facts: dict[str, Any] = {"study": "tiny", "cell": name, "repetition": repetition}
            gate = 0.8 if name in reused else 0.0
            plan = SyntheticRunPlan(frames=24, seed=repetition, slower_ms=slower_ms.get(name, 0.0), reused=gate)
            write_run(folder / "cells" / name / str(repetition) / "vehicle-1", plan)
            log = _frames(plan).copy()
            is_early = log["sequence"] < warm_up
            log.loc[is_early, "total_ms"] *= 10
            phase = {"vehicle_run": "vehicle-1", "phase": np.where(is_early, "warm_up", "measured")}
            logs.append(pd.concat([pd.DataFrame(facts | phase, log.index), log], axis=1))
            busy = 100.0 + repetition + (40.0 if slower_ms.get(name) else 0.0)
            counts = log["outcome"].value_counts()
            facts |= {outcome.value: int(counts.get(outcome.value, 0)) for outcome in Outcome}
            facts |= {"frames_read": len(log), "frames_sent": int((log["attempts"] > 0).sum())}
            results = {"worker_cpu_percent": busy, "total_mean_ms": float(log["total_ms"].mean())}
            runs.append(facts | dict(axes) | {"state": "done", **results, "source_sha256": "ab" * 32})
    pd.DataFrame(runs).to_csv(folder / "runs.csv", index=False)
    pd.concat(logs, ignore_index=True).to_parquet(folder / "frames.parquet", index=False)
    varied: Mapping[str, Sequence[Any]] = {
        axis: [axes[axis] for axes in cells.values()] for axis in next(iter(cells.values()))
    }
    (folder / "manifest.json").write_text(
        json.dumps({"kind": "study", "name": "tiny", "axes": varied}), encoding="utf-8"
    )
    return folder


def _report(folder: Path) -> ReportContent:
    return report_of(ReportInput(study=load_study(folder)))


def _rows(folder: Path, chapter: Callable[[StudyLog], Chapter | None], name: str = "") -> list[dict[str, Any]]:
    """Returns the rows of a chapter's only table, or of the table `name`, as maps."""
    found = chapter(load_study(folder))
    assert found is not None
    (table,) = (part for part in found.parts if isinstance(part, ReportTable) and name in ("", part.name))
    return [dict(zip((column.heading for column in table.columns), row, strict=True)) for row in table.rows]


def test_cpu_is_compared_with_one_value_per_run(tmp_path: Path) -> None:
    """The samples of a run are correlated; a test of single samples would call every difference significant."""
    cells = {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}
    folder = _study(tmp_path, cells, {"b": 30.0})
    (row,) = _rows(folder, utilization.chapter, "utilisation_codec")
    assert (row["resource"], row["compared"], row["baseline"]) == ("worker CPU %", "raw", "jpeg")
    assert (row["compared mean"], row["baseline mean"], row["runs"]) == (142.0, 102.0, "3 and 3")
    assert (row["compared ±"], row["baseline ±"]) == (1.0, 1.0)
    assert row["difference"].low == row["difference"].high == 40  # The same difference in every repetition.
    assert (row["verdict"], row["p"]) == ("higher", "< 0.001")


def test_latency_is_compared_by_repetition_and_sentence_table_and_json_agree(tmp_path: Path) -> None:
    """The page once had different verdicts for the same comparison."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {"b": 30.0})
    study = load_study(folder)
    sentence, note = (part.text for part in study_chapters.axes(study).parts if isinstance(part, Paragraph))
    assert note.startswith("All runs of a cell played one recording")
    (row,) = _rows(folder, study_chapters.axes, "by_codec")
    medians = study.results.groupby(["cell", "repetition"])["total_ms"].median()
    assert row["difference ms"].value == pytest.approx((medians["b"] - medians["a"]).mean())
    assert (row["verdict"], row["p"]) == ("higher", "< 0.001")
    assert sentence.startswith("At the median, raw took ")
    assert "paired t-test over 3 blocks" in sentence
    (comparison,) = report_json(ReportInput(study=study))["comparisons"]["codec"]
    assert (comparison["verdict"], comparison["sentence"]) == (row["verdict"], sentence)
    assert comparison["p_value"] < 0.001


def test_mean_inference_and_overhead_sum_to_the_mean_total(tmp_path: Path) -> None:
    """The table also has the number of frames and the spread of the runs."""
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
    frames = load_study(folder).answered
    for row, name in zip(rows, cells, strict=True):
        assert row["total mean ms"] == pytest.approx(row["inferred mean ms"] + row["overhead mean ms"])
        cell_frames = frames[frames["cell"] == name]
        assert row["frames"] == len(cell_frames) <= 3 * 20
        by_run = [run_frames["total_ms"].mean() for _, run_frames in cell_frames.groupby("repetition")]
        assert row["± total ms"] == pytest.approx(np.std(by_run, ddof=1))
    codecs = _rows(folder, overhead.chapter, "codecs")
    assert codecs[0]["bytes up"] == pytest.approx(frames.loc[frames["cell"] == "a", "bytes_up"].astype(float).mean())
    assert [row["total mean ms"] for row in codecs] == [row["total mean ms"] for row in rows]


def test_the_tariff_in_the_manifest_of_a_study_is_used(tmp_path: Path) -> None:
    """The file of the study has the price; the table has the mean price and its spread over the runs."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    runs = pd.read_csv(folder / "runs.csv").assign(throughput_hz=[8.0, 10.0, 12.0, 4.0, np.nan, np.nan])
    runs.to_csv(folder / "runs.csv", index=False)
    assert "cost" not in {chapter.anchor for chapter in _report(folder).chapters}
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tariff"] = {"price_per_hour": 1.25, "currency": "EUR", "footage_hz": 24}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    cost = next(chapter for chapter in _report(folder).chapters if chapter.anchor == "cost")
    first, second = _rows(folder, lambda _: cost)
    prices = [1.25 * 24 * 24 / rate for rate in (8.0, 10.0, 12.0)]
    assert (first["run"], first["runs"], first["results a second"]) == ("jpeg", 3, 10.0)
    assert (first["price EUR"], first["± EUR"]) == pytest.approx((prices[1], np.std(prices, ddof=1)))
    assert second["runs"] == 1
    assert np.isnan(second["± EUR"])


@pytest.mark.parametrize(
    "tariff",
    [None, 3, {}, *({"price_per_hour": price, "currency": "EUR", "footage_hz": 24} for price in ("dear", -1, np.inf))],
)
def test_an_invalid_tariff_is_ignored(tariff: object) -> None:
    """An invalid value in the manifest must not prevent the report."""
    assert Tariff.from_manifest({"tariff": tariff}) is None


def test_a_burst_is_split_into_four_terms_and_compared_with_one_worker(tmp_path: Path) -> None:
    """The terms sum to the measured latency; the speed-up compares cells that differ only in their workers."""
    cells = {"one": {**_SCENARIO, "workers": 1}, "two": {**_SCENARIO, "workers": 2}}
    folder = _study(tmp_path, cells, {"one": 500.0})
    tables = (_rows(folder, bursts.chapter, name) for name in ("bursts", "burst_terms"))
    one, two = (totals | terms for totals, terms in zip(*tables, strict=True))
    for row in (one, two):
        assert sum(
            row[f"{term} ms"] for term in ("network", "client queue", "server queue", "compute")
        ) == pytest.approx(row["latency ms"])
    assert (one["workers"], two["workers"], one["runs"]) == (1, 2, 3)
    assert one["speed-up"] == 1
    assert one["± latency ms"] > 0
    assert two["speed-up"] == pytest.approx(one["latency ms"] / two["latency ms"], rel=0.2)
    assert two["speed-up"] > 1.5


def test_a_study_without_bursts_links_or_codecs_has_no_such_chapters(tmp_path: Path) -> None:
    """An empty table would look like a measurement."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    study = load_study(folder)
    assert (bursts.chapter(study), offloading.study_chapter(study)) == (None, None)
    one_codec = overhead.chapter(load_study(_study(tmp_path / "links", {"a": {"link": "4g"}, "b": {"link": "5g"}}, {})))
    assert one_codec is not None
    assert [part.name for part in one_codec.parts if isinstance(part, ReportTable)] == ["overhead"]


def test_a_cell_with_a_link_is_compared_with_the_same_cell_without_one(tmp_path: Path) -> None:
    """The table has the added latency and the slowdown of a vehicle at which offloading breaks even."""
    cells = {"here": {"codec": "raw", "link": "none"}, "far": {"codec": "raw", "link": "4g"}}
    cells |= {"other": {"codec": "jpeg", "link": "4g"}}  # There is no such cell without a link.
    folder = _study(tmp_path, cells, {"far": 80.0})
    (row,) = _rows(folder, offloading.study_chapter)
    assert row["offloaded"] == "raw · 4g"
    assert row["difference ms"].value == pytest.approx(80, abs=8)
    assert row["break-even slowdown ×"] == pytest.approx(1 + row["difference ms"].value / row["inference p50 ms"])


def test_warm_up_frames_are_excluded_from_the_offloading_comparison(tmp_path: Path) -> None:
    """Slow first frames of both cells would hide the latency of the link."""
    cells = {"here": {"codec": "raw", "link": "none"}, "far": {"codec": "raw", "link": "4g"}}
    (row,) = _rows(_study(tmp_path / "warm", cells, {"far": 80.0}), offloading.study_chapter)
    (same,) = _rows(_study(tmp_path / "cold", cells, {"far": 80.0}, warm_up=14), offloading.study_chapter)
    assert (row["frames"], same["frames"]) == (3 * 24 - 1, 3 * 10)  # One frame was lost.
    assert same["local p50 ms"].value == pytest.approx(row["local p50 ms"].value, rel=0.2)
    assert same["difference ms"].value == pytest.approx(80, abs=8)


def test_the_first_value_of_an_axis_in_the_file_is_the_baseline(tmp_path: Path) -> None:
    """`link: [none, 4g]` asks for the effect of the link, regardless of the alphabetical order."""
    cells = {"here": {"link": "none"}, "far": {"link": "4g"}, "farther": {"link": "3g"}}
    study = load_study(_study(tmp_path, cells, {}))
    assert [cell.name for cell in study.cells] == ["none", "4g", "3g"]
    assert [(a.name, b.name) for a, b in study.pairs("link")] == [("none", "4g"), ("none", "3g")]


def test_an_axis_may_have_the_default_value_in_some_cells(tmp_path: Path) -> None:
    """Only some cells of this study set `frames`; the numbers of the other cells stay integers."""
    cells = {f"{w}.{n}": {"workers": w, "frames": n, **_SCENARIO} for n in (None, 49, 22) for w in (1, 2)}
    folder = _study(tmp_path, cells, {})
    study = load_study(folder)
    names = ("frames default", "49 frames", "22 frames")
    assert [cell.name for cell in study.cells] == [f"{w} · {n}" for w in ("1 worker", "2 workers") for n in names]
    assert [(a.name, b.name) for a, b in study.pairs("workers")] == [
        (f"1 worker · {n}", f"2 workers · {n}") for n in names
    ]
    assert {a.settings["frames"] for a, _ in study.pairs("frames")} == {None}
    assert all(np.isfinite(row["speed-up"]) for row in _rows(folder, bursts.chapter, "bursts"))
    rows = _rows(folder, overhead.chapter, "overhead")
    assert [row["frames (axis)"] for row in rows] == 2 * ["default", "49", "22"]  # `frames` is also a column.
    assert all(row["frames"] == 3 * 24 - 1 for row in rows)  # One frame was lost.
    assert _report(folder).chapters


def _planned(folder: Path, **axes: Sequence[Any]) -> StudyLog:
    """Reads a study whose manifest plans these axes."""
    manifest = {"kind": "study", "name": "tiny", "axes": axes}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return load_study(folder)


def test_what_follows_from_an_axis_is_no_second_axis(tmp_path: Path) -> None:
    """Two models have engines and precisions of their own: the plan asks which model is faster."""
    cells = {
        "a": {"model": "a", "engine": "tensorflow", "precision": "fp32"},
        "b": {"model": "b", "engine": "tflite", "precision": "fp16"},
    }
    study = _planned(_study(tmp_path, cells, {}), model=["a", "b"], engine=[None], precision=[None])
    assert [(a.name, b.name) for a, b in study.pairs("model")] == [("a", "b")]
    texts = [part.text for part in study_chapters.axes(study).parts if isinstance(part, Paragraph)]
    assert texts[1:3] == [
        "The engine is no axis of this study, but follows from its model: tensorflow for a, tflite for b.",
        "The precision is no axis of this study, but follows from its model: fp32 for a, fp16 for b.",
    ]
    assert [row["model"] for row in _rows(tmp_path, overhead.chapter, "overhead")] == ["a", "b"]


def test_what_follows_from_one_axis_is_not_said_of_another(tmp_path: Path) -> None:
    """Both models are served over both links."""
    cells = {
        f"{model}.{link}": {"model": model, "precision": precision, "link": link}
        for model, precision in (("a", "fp32"), ("b", "fp16"))
        for link in ("none", "5g")
    }
    study = _planned(_study(tmp_path, cells, {}), link=["none", "5g"], model=["a", "b"], precision=[None])
    assert [*study.consequences()] == [
        "The precision is no axis of this study, but follows from its model: fp32 for a, fp16 for b."
    ]


def test_a_planned_default_is_compared_with_the_default(tmp_path: Path) -> None:
    """The table of runs has what was served; the same precision may also have been planned."""
    cells = {
        "a.default-precision": {"model": "a", "precision": "fp32"},
        "a.fp16": {"model": "a", "precision": "fp16"},
        "b.default-precision": {"model": "b", "precision": "fp16"},
        "b.fp16": {"model": "b", "precision": "fp16"},
    }
    study = _planned(_study(tmp_path, cells, {}), model=["a", "b"], precision=[None, "fp16"])
    assert [(a.key, b.key) for a, b in study.pairs("model")] == [
        ("a.default-precision", "b.default-precision"),
        ("a.fp16", "b.fp16"),
    ]
    assert [(a.key, b.key) for a, b in study.pairs("precision")] == [
        ("a.default-precision", "a.fp16"),
        ("b.default-precision", "b.fp16"),
    ]
    assert [cell.name for cell in study.cells] == ["a · fp32", "a · fp16", "b · precision default", "b · fp16"]


def test_latency_is_shown_against_load_and_bytes(tmp_path: Path) -> None:
    """Each cell with answered frames has a median and a 95th percentile."""
    report = report_of(ReportInput(study=load_study(write_study(tmp_path / "study"))))
    charts = {chart.name: chart for chart in report.charts()}
    for name in ("cells_load", "cells_bytes"):
        p50, p95 = charts[name].traces
        assert len(p50["x"]) == len(p95["x"]) == 3
        assert all(low <= high for low, high in zip(p50["y"], p95["y"], strict=True))
    assert charts["cells_load"].traces[0]["x"] == pytest.approx([6.8, 6.7, 6.6])


def test_accuracy_is_shown_against_bytes_and_latency_of_studies_that_measured_it(tmp_path: Path) -> None:
    """The charts have one mark per cell, the table the spread of its runs; other studies have no such chapter."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    assert accuracy.chapter(load_study(folder)) is None
    measured = {
        "mean_iou": [0.7, 0.8, 0.9, 0.5, np.nan, np.nan],
        "pixel_accuracy": 0.9,
        "masks_compared": 12,
        "bytes_per_frame": [1000.0] * 3 + [9000.0] * 3,
        "total_p50_ms": 80.0,
    }
    pd.read_csv(folder / "runs.csv").assign(**measured).to_csv(folder / "runs.csv", index=False)
    first, second = _rows(folder, accuracy.chapter)
    assert (first["cell"], first["runs"], first["masks"]) == ("jpeg", 3, 12)
    assert (first["mean IoU"], first["± mean IoU"]) == pytest.approx((0.8, 0.1))
    assert (second["runs"], second["bytes per frame"]) == (1, 9000)
    charts = {chart.name: chart.traces[0] for chart in _report(folder).charts()}
    assert charts["accuracy_bytes"]["x"] == [1.0, 9.0]
    assert charts["accuracy_latency"]["y"] == pytest.approx([0.8, 0.5])


def test_streaming_accuracy_is_shown_against_age_of_studies_that_measured_it(tmp_path: Path) -> None:
    """The chart has one mark per cell, the table intervals over the runs; other studies have no such chapter."""
    folder = _study(tmp_path, {"a": {"present": "none"}, "b": {"present": "warp"}}, {})
    assert accuracy.streaming_chapter(load_study(folder)) is None
    measured = {
        "mean_iou": 0.74,
        "at_tick_mean_iou": [0.42, 0.43, 0.44, 0.6, np.nan, np.nan],
        "at_tick_mean_iou_all_ticks": [0.40, 0.41, 0.42, 0.6, np.nan, np.nan],
        "for_tick_mean_iou": [np.nan, np.nan, np.nan, 0.7, np.nan, np.nan],
        "after_due_p95_ms": [np.nan, np.nan, np.nan, 31.0, np.nan, np.nan],
        "output_age_p50_ms": [200.0] * 3 + [190.0] * 3,
        "output_age_p95_ms": 300.0,
        "ticks_scored": 50,
        "ticks_without_output": [1, 2, 3, 0, 0, 0],
    }
    pd.read_csv(folder / "runs.csv").assign(**measured).to_csv(folder / "runs.csv", index=False)
    first, second = _rows(folder, accuracy.streaming_chapter)
    assert (first["cell"], first["runs"], first["ticks"], first["without output %"]) == ("no presenter", 3, 150, 4.0)
    assert first["at the tick"].value == pytest.approx(0.43)
    assert first["at the tick"].low < 0.42
    assert first["at the tick"].high > 0.44
    assert (second["for the tick"].value, second["after due p95 ms"]) == (0.7, 31.0)
    assert first["ceiling"].value == pytest.approx(0.74)
    assert (second["cell"], second["at the tick"].value, second["age p50 ms"]) == ("warp", 0.6, 190.0)
    (chart,) = (chart for chart in _report(folder).charts() if chart.name == "streaming_cells")
    assert [trace["name"] for trace in chart.traces] == ["no presenter", "warp"]
    assert [trace["x"] for trace in chart.traces] == [[200.0], [190.0]]
    estimate = first["at the tick"]
    assert chart.traces[0]["error_y"]["array"] == pytest.approx([estimate.high - estimate.value])
    assert chart.traces[0]["error_y"]["arrayminus"] == pytest.approx([estimate.value - estimate.low])
    assert chart.traces[1]["error_y"]["array"] == chart.traces[1]["error_y"]["arrayminus"] == [0.0]


def test_the_best_cell_is_best_over_all_ticks(tmp_path: Path) -> None:
    """A presenter must not look good by showing nothing, and two runs must not look certain."""
    folder = _study(tmp_path, {"a": {"present": "warp"}, "b": {"present": "hold"}, "c": {"present": "fuse"}}, {})
    measured = {
        "mean_iou": 0.7,
        "at_tick_mean_iou": [0.424, 0.424, np.nan, 0.415, 0.41, 0.415, np.nan, np.nan, np.nan],
        "at_tick_mean_iou_all_ticks": [0.064, 0.384, 0.0, 0.415, 0.41, 0.415, 0.0, 0.0, 0.0],
        "output_age_p50_ms": 200.0,
        "output_age_p95_ms": 300.0,
        "ticks_scored": 50,
        "ticks_without_output": [25, 5, 50, 0, 0, 0, 50, 50, 50],
    }
    pd.read_csv(folder / "runs.csv").assign(**measured).to_csv(folder / "runs.csv", index=False)
    warp, hold, fuse = _rows(folder, accuracy.streaming_chapter)
    assert (warp["runs"], warp[AT_TICK].value, warp[f"{AT_TICK}, all ticks"].value) == (
        3,
        0.424,
        pytest.approx(0.1493, abs=1e-4),
    )
    assert np.isnan(warp[AT_TICK].low)  # Only two runs had an output.
    assert 0 < warp[f"{AT_TICK}, all ticks"].low < 0.1493 < warp[f"{AT_TICK}, all ticks"].high < 1
    assert np.isnan(hold["ceiling"].low)
    assert (np.isnan(fuse[AT_TICK].value), fuse[f"{AT_TICK}, all ticks"].value) == (True, 0.0)
    (caption,) = (chart.caption for chart in _report(folder).charts() if chart.name == "streaming_cells")
    assert "Best at the tick: hold, mean IoU 0.413 over all ticks." in caption
    assert any("All runs of a cell played one recording" in table.caption for table in _report(folder).tables())


def test_the_results_of_a_study_have_the_shares_by_origin(tmp_path: Path) -> None:
    """Frames that were not sent are results; the table shows what they saved."""
    cells = {"a": {"gate": "none"}, "b": {"gate": "mse"}}
    folder = _study(tmp_path, cells, {}, reused=["b"])
    study = load_study(folder)
    plain, gated = _rows(folder, study_chapters.results, "results")
    log = study.measured[study.measured["cell"] == "b"]
    assert (plain["reused %"], plain["local %"]) == (0.0, 0.0)
    assert gated["reused %"] == pytest.approx(100 * (log["outcome"] == "reused").mean())
    assert gated["reused %"] > 40
    assert gated["with a result %"] == pytest.approx(100 * log["outcome"].isin(["answered", "reused"]).mean())
    assert gated["sent %"] < plain["sent %"]
    assert gated["frames"] == log["outcome"].isin(["answered", "reused"]).sum()
    (median,) = (row["difference ms"] for row in _rows(folder, study_chapters.axes, "by_gate"))
    assert median.value < -100  # The vehicle gets most results at once.
    (row,) = (row for row in _rows(folder, overhead.chapter, "overhead") if row["gate"] == "mse")
    assert row["frames"] == (log["outcome"] == "answered").sum()


def test_a_study_without_such_frames_has_no_columns_for_them(tmp_path: Path) -> None:
    """Its table stays as narrow as it was."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}}, {})
    (row,) = _rows(folder, study_chapters.results, "results")
    assert not [heading for heading in row if heading in ("reused %", "local %", "sent %")]


def test_a_study_of_an_earlier_version_is_reported(tmp_path: Path) -> None:
    """Its tables lack the columns of frames that were not sent."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    runs = pd.read_csv(folder / "runs.csv")
    runs.drop(columns=["reused", "answered_locally", "frames_sent"]).to_csv(folder / "runs.csv", index=False)
    frames = pd.read_parquet(folder / "frames.parquet")
    frames.drop(columns=[*ADDED]).to_parquet(folder / "frames.parquet", index=False)
    study = load_study(folder)
    assert not study.problems
    assert study.group(study.cells[0]).result_share == pytest.approx(
        runs["answered"].sum() / runs["frames_read"].sum(), abs=0.1
    )


def test_a_study_without_runs_is_reported(tmp_path: Path) -> None:
    """It was interrupted before its first run ended."""
    folder = _study(tmp_path, {"a": {"codec": "jpeg"}, "b": {"codec": "raw"}}, {})
    pd.read_csv(folder / "runs.csv").head(0).to_csv(folder / "runs.csv", index=False)
    assert load_study(folder).cells == ()


def test_the_bursts_of_a_study_count_the_frames_that_were_sent(tmp_path: Path) -> None:
    """The formula of the original is about requests, not frames."""
    axes = {"scenario": "one_per_worker", "workers": 1}
    folder = _study(tmp_path, {"a": axes | {"gate": "none"}, "b": axes | {"gate": "mse"}}, {}, reused=["b"])
    plain, gated = _rows(folder, bursts.chapter, "bursts")
    assert plain["sent"] == plain["frames"]
    assert gated["sent"] < gated["frames"] / 2
    plain, gated = _rows(folder, bursts.chapter, "burst_terms")
    assert gated["queue by the formula ms"] < plain["queue by the formula ms"] / 2
