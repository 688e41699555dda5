"""Reports of runs in which frames got a result without being sent."""

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.logs.audit import audit
from analysis.logs.run_log import load_run
from analysis.offloading import throughput_hz
from analysis.report.chapters.run import stages, unsent
from analysis.report.content import Caution, Chapter, Chart, ReportContent, ReportTable
from analysis.report.data.answered_frames import answered_frames
from analysis.report.data.report_input import load_report_input
from analysis.report.data.unsent_frames import reuse_ages, savings
from analysis.report.document import report_of
from analysis.report.output.page import render
from analysis.report.results import report_json, terminal_tables
from tests.support.synthetic_run import SyntheticRunPlan, write_run

OLD_RUN = Path(__file__).parents[3] / "data" / "run_schema_3"


def chapter_on(folder: Path) -> Chapter:
    """Returns the chapter about frames that were not sent."""
    (found,) = unsent.chapters(load_run(folder))
    return found


def chart(folder: Path, name: str) -> Chart:
    """Returns a chart of the chapter."""
    (found,) = (part for part in chapter_on(folder).parts if isinstance(part, Chart) and part.name == name)
    return found


def rows(folder: Path, name: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a table of the chapter."""
    (found,) = (part for part in chapter_on(folder).parts if isinstance(part, ReportTable) and part.name == name)
    return [*found.rows]


def changed_manifest(folder: Path, target: Path, **reuse: Any) -> Path:
    """Copies a run with other values in the section `reuse` of its manifest."""
    shutil.copytree(folder, target)
    path = target / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"reuse": manifest["reuse"] | reuse}), encoding="utf-8")
    return target


def test_latency_is_reported_by_the_origin_of_the_result(gated: Path) -> None:
    """A median over all origins alone would hide that the workers are slow."""
    assert audit(gated) == ()
    log = load_run(gated).frames
    totals = log["total_ms"].groupby(log["outcome"])
    found = rows(gated, "origins")
    assert [row[:2] for row in found[:-1]] == [
        ("worker", "answered"), ("reused", "reused"), ("local", "answered_locally"),
    ]  # fmt: skip
    for _, outcome, frames, share, p50, p95, _ in found[:-1]:
        assert frames == (log["outcome"] == outcome).sum()
        assert share == pytest.approx(100 * frames / 400)
        assert (p50, p95) == pytest.approx(tuple(totals.quantile([0.5, 0.95])[outcome]))
    assert found[-1][:3] == ("all results", "", sum(row[2] for row in found[:-1]))
    assert report_json(load_report_input([gated]))["origins"][1]["p50_ms"] == pytest.approx(found[1][4])


def test_summary_and_key_figures_count_all_results(gated: Path, gated_report: ReportContent) -> None:
    """A run that sends one frame of ten has not lost the other nine."""
    made, log = gated_report, load_run(gated)
    assert "unsent" in {chapter.anchor for chapter in made.chapters}
    counts = log.frames["outcome"].value_counts()
    assert made.summary.startswith(
        f"{counts['answered']} of 400 frames were answered by a worker, {counts['reused']} got the result of an earlier "
        f"frame and {counts['answered_locally']} were answered by the vehicle's own model ("
    )
    values = {figure.label: figure.value for figure in made.key_figures}
    not_sent = counts["reused"] + counts["answered_locally"]
    assert values["not sent"] == f"{100 * not_sent / 400:.0f} %"
    rate_hz = throughput_hz(log)
    assert rate_hz == pytest.approx(7.0, rel=0.05)  # As many results as frames were due, 7 a second.
    assert float(values["frames per second"]) == pytest.approx(rate_hz, abs=1e-3)


def test_every_origin_is_a_series_of_its_own(gated_report: ReportContent) -> None:
    """Distribution, timeline and throughput distinguish them."""
    charts = {each.name: each for each in gated_report.charts()}
    names = {name: [trace.get("name", "") for trace in charts[name].traces] for name in charts}
    assert names["cumulative"] == ["all results", "worker", "reused", "local"]
    assert names["throughput"] == [
        "frames due", "all results", "frames answered", "frames reused", "frames answered locally",
    ]  # fmt: skip
    assert {"reused", "answered locally"} < set(names["timeline"])
    assert [name.split()[0] for name in names["outcomes"][:3]] == ["answered", "reused", "answered_locally"]


def test_stages_are_those_of_frames_answered_by_a_worker(gated_report: ReportContent) -> None:
    """They include the optional stages, and sum to the total."""
    (table,) = (table for table in gated_report.tables() if table.name == "stages")
    names = [row[0] for row in table.rows]
    assert names.index("gated") + 1 == names.index("inferred_locally") == names.index("encoded") - 1
    assert sum(float(str(row[5])) for row in table.rows[:-1]) == pytest.approx(100)


def test_the_stage_that_grows_in_the_slowest_frames_is_named(gated: Path) -> None:
    """It need not be the largest one: here the slowest frames waited for their batch."""
    frames = answered_frames(load_run(gated).frames)
    wait_ms = 300.0 * (frames["total_ms"].rank(pct=True) > 0.9)
    slowed = frames.assign(batched_ms=frames["batched_ms"] + wait_ms, total_ms=frames["total_ms"] + wait_ms)
    (caption,) = (
        part.caption for part in stages.chapter(slowed).parts if isinstance(part, Chart) and part.name == "shares"
    )
    assert "; the largest is inferred, " in caption
    assert " In the slowest frames, batched has " in caption


def test_a_stage_that_few_frames_passed_adds_to_their_time_only(gated: Path, tmp_path: Path) -> None:
    """The local model runs for a frame only if the gate did not reuse a result, or as a fallback."""
    folder = tmp_path / "run"
    shutil.copytree(gated, folder)
    log = pd.read_csv(folder / "latency.csv", dtype=str, keep_default_na=False)
    skipped = log.index[log["outcome"] == "answered"][::2]
    for row in skipped:  # The time of the local model becomes part of the next stage.
        encoded = int(log.loc[row, "t_encoded_ns"]) - int(log.loc[row, "t_gated_ns"])
        log.loc[row, "encoded_ms"] = f"{encoded / 1e6:.6f}"
        log.loc[row, ["t_inferred_locally_ns", "inferred_locally_ms", "local_confidence"]] = ""
    log.to_csv(folder / "latency.csv", index=False)
    assert audit(folder) == ()
    made = report_of(load_report_input([folder]))
    (table,) = (table for table in made.tables() if table.name == "stages")
    shares = {row[0]: float(str(row[5])) for row in table.rows}
    assert sum(shares.values()) - shares["total"] == pytest.approx(100)
    medians = {row[0]: float(str(row[2])) for row in table.rows}
    assert medians["inferred_locally"] > 2  # Of the frames that passed it, without zeros of the others.
    answered = (log["outcome"] == "answered").sum()
    assert f"inferred_locally {answered - len(skipped)}" in table.caption
    assert render(made)


def test_the_distances_are_drawn_with_the_threshold(gated: Path) -> None:
    """All reused frames are left of it."""
    drawn = chart(gated, "gate_distances")
    (mark,) = drawn.layout["shapes"]
    assert mark["x0"] == 20.0
    assert drawn.layout["annotations"][0]["x"] == pytest.approx(np.log10(20.0))
    by_name = {trace["name"].rsplit(" ", 1)[0]: trace for trace in drawn.traces}
    reused = by_name["reused"]
    assert sum(reused["y"]) == (load_run(gated).frames["outcome"] == "reused").sum()
    assert max(reused["x"][reused["y"] > 0]) < 22
    assert "sent" in by_name
    histograms = ("gate_distances", "reuse_ages", "local_confidences")
    assert {len(trace["y"]) for name in histograms for trace in chart(gated, name).traces} == {40}


def test_the_age_of_a_result_counts_from_the_frame_that_it_belongs_to(gated: Path) -> None:
    """Ages are those that the gate limits: in compared frames of the camera, and in time of the source."""
    log = load_run(gated).frames
    age_frames, ages_ms = reuse_ages(log)
    assert len(ages_ms) == (log["outcome"] == "reused").sum()
    assert age_frames.min() >= 1
    assert age_frames.max() <= (log["sequence"] - log["reused_sequence"]).max()
    reused = log[log["outcome"] == "reused"].sort_values("sequence")
    expected = (reused["sequence"] - reused["reused_sequence"]).astype(float) / 7 * 1e3
    np.testing.assert_allclose(np.sort(ages_ms), np.sort(expected), atol=1e-3)
    assert [row[0] for row in rows(gated, "reuse_ages")] == ["frames of the camera", "ms"]
    assert rows(gated, "reuse_ages")[0][-1] == 100.0


def test_savings_are_counted_in_inferences_and_bytes(gated: Path) -> None:
    """Bytes are estimated from the frames that were sent."""
    log = load_run(gated).frames
    saved = savings(log)
    assert saved.inferences == log["outcome"].isin(["reused", "answered_locally"]).sum()
    answered = log[log["outcome"] == "answered"]
    mean_bytes = float((answered["bytes_up"] + answered["bytes_down"]).mean())
    assert saved.bytes_total == pytest.approx(saved.inferences * mean_bytes)


def test_confidences_are_drawn_with_both_thresholds(gated: Path, tmp_path: Path) -> None:
    """A low score of a yes-or-no model is a confident no."""
    assert [mark["x0"] for mark in chart(gated, "local_confidences").layout["shapes"]] == [0.9]
    local = {"name": "road-tiny", "c_low": 0.3, "c_high": 0.9}
    other = changed_manifest(gated, tmp_path / "two", local=local)
    assert [mark["x0"] for mark in chart(other, "local_confidences").layout["shapes"]] == pytest.approx([0.9, 0.7])
    one_sided = changed_manifest(gated, tmp_path / "one", local=local | {"c_low": 0.0})
    assert [mark["x0"] for mark in chart(one_sided, "local_confidences").layout["shapes"]] == [0.9]


def test_the_reliability_diagram_compares_confidence_and_accuracy(gated: Path) -> None:
    """It has the bins of the tuning, with and without calibration."""
    drawn = chart(gated, "reliability")
    assert [trace["name"] for trace in drawn.traces] == ["right as often as sure", "calibrated", "not calibrated"]
    assert drawn.traces[1]["x"] == pytest.approx(drawn.traces[1]["y"])
    assert "calibrated 0.0000 and not calibrated 0.0800" in drawn.caption
    assert len(rows(gated, "reliability")) == 5


def test_failures_of_the_local_model_are_named(gated: Path, tmp_path: Path) -> None:
    """A run whose local model hung measured only its beginning."""
    local = {"name": "road-tiny", "failures": {"raised": 2, "timeout": 1}, "switched_off": "timeout"}
    folder = changed_manifest(gated, tmp_path / "run", local=local)
    cautions = [part.text for part in chapter_on(folder).parts if isinstance(part, Caution)]
    assert cautions == [
        "The local model was paused during the run: timeout.",
        "The local model failed: raised 2 and timeout 1.",
    ]


@pytest.mark.parametrize(
    "section", [None, 7, {"gate": "mse", "local": [], "measured": {"reliability": [{"low": "x"}, 3]}}]
)
def test_an_invalid_section_of_the_manifest_is_read_as_missing(gated: Path, tmp_path: Path, section: object) -> None:
    """The log alone says which frames were not sent."""
    folder = tmp_path / "run"
    shutil.copytree(gated, folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"reuse": section}), encoding="utf-8")
    names = {part.name for part in chapter_on(folder).parts if isinstance(part, Chart)}
    assert names == {"gate_distances", "reuse_ages", "local_confidences"}
    assert "shapes" not in chart(folder, "gate_distances").layout


def test_the_page_of_a_run_that_sends_every_frame_does_not_mention_others(report: ReportContent) -> None:
    """Its captions and key figures are those of a run without a gate."""
    assert "not sent" not in render(report).partition("<script")[0]


def test_a_run_whose_gate_reused_nothing_has_the_chapter(tmp_path: Path) -> None:
    """The reader sees why: all distances are above the threshold."""
    plain = write_run(tmp_path / "run", SyntheticRunPlan(frames=60))
    path = plain / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    gate = {"method": "mse", "threshold": 1.0}
    path.write_text(json.dumps(manifest | {"reuse": {"gate": gate}}), encoding="utf-8")
    assert ("threshold of the gate", "1") in rows(plain, "reuse_settings")
    assert [row[0] for row in rows(plain, "origins")] == ["worker"]


def test_a_run_of_an_earlier_version_is_reported() -> None:
    """Its log has neither the columns nor the outcomes of frames that were not sent."""
    made = report_of(load_report_input([OLD_RUN]))
    assert made.summary
    assert render(made)


def test_the_terminal_shows_the_latency_by_origin(gated: Path, gated_report: ReportContent) -> None:
    """The tables are those that the vehicle prints at the end of the run."""
    out = StringIO()
    for table in terminal_tables(load_report_input([gated]), gated_report):
        Console(file=out, width=120).print(table)
    shown = out.getvalue()
    assert "Total time of frames that were not sent" in shown
    assert shown.count("answered_locally") == 2
