"""`skylane.open_run`, `compare` and `differences`: the same numbers as the report, as data frames."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import skylane
from analysis.logs.run_log import load_run
from analysis.report.data.report_input import load_report_input
from analysis.report.results import report_json
from analysis.streaming.run_accuracy import run_accuracy
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.runlog.presented_log import read_presented
from tests.pipeline.rig import HEIGHT, WIDTH, direct, noise, pictures, worker
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run, write_truth

FRAMES = 20


def test_the_latency_table_has_a_row_for_every_frame(run: Path) -> None:
    """Times are exact integers, durations are floats, and the columns name their units."""
    opened = skylane.open_run(run)
    pd.testing.assert_frame_equal(opened.frames, load_run(run).frames)
    assert opened.frames["t_due_ns"].dtype == pd.Int64Dtype()
    assert opened.frames["total_ms"].dtype == np.float64
    assert opened.manifest["kind"] == "run"
    assert opened.name == run.name


def test_the_stages_are_those_of_the_report(run: Path, slower: Path) -> None:
    """A program that needs the numbers must not compute them again."""
    table = skylane.compare([skylane.open_run(run), slower])
    assert list(table.index.get_level_values("run").unique()) == [run.name, slower.name]
    for name, folder in ((run.name, run), (slower.name, slower)):
        expected = report_json(load_report_input([folder]))
        for stage in expected["stages"]:
            row = table.loc[name, stage["name"]]
            assert row[["p50_ms", "p95_ms"]].tolist() == pytest.approx([stage["p50_ms"], stage["p95_ms"]])
            assert (row["where"], row["share"]) == (stage["where"], pytest.approx(stage["share"]))
        total, told = table.loc[name, "total"], expected["statistics"]["total"]
        assert [total[f"p95{end}_ms"] for end in ("", "_low", "_high")] == pytest.approx([*told["p95"].values()])
        assert (total["frames"], total["std_ms"]) == (told["count"], pytest.approx(told["std"]))


def test_a_single_run_needs_no_list(tmp_path: Path) -> None:
    """Its path, as text too, or the run itself."""
    run = write_streaming_run(tmp_path / "run")
    expected = skylane.compare([run])
    for given in (run, str(run), skylane.open_run(run)):
        pd.testing.assert_frame_equal(skylane.compare(given), expected)


def test_the_differences_are_those_of_the_report(run: Path, slower: Path) -> None:
    """They are of the first run given."""
    (expected,) = report_json(load_report_input([run, slower]))["comparisons"]
    table = skylane.differences([run, slower])
    assert list(table.index) == [expected["b"]] == [slower.name]
    row = table.iloc[0]
    assert row["difference_ms"] == pytest.approx(expected["difference"]["value"])
    assert (row["baseline"], row["verdict"]) == (expected["a"], expected["verdict"])


def test_runs_of_the_same_name_get_different_ones(run: Path, tmp_path: Path) -> None:
    """`runs/a/demo` and `runs/b/demo` would otherwise be one run."""
    for parent in "ab":
        (tmp_path / parent).mkdir()
        (tmp_path / parent / run.name).symlink_to(run)
    copies = [write_streaming_run(tmp_path / parent / "demo") for parent in "ab"]
    names = skylane.compare(copies).index.get_level_values("run").unique()
    assert list(names) == ["a/demo", "b/demo"]
    with pytest.raises(SkylaneError, match="give two runs or more"):
        skylane.differences([run])


def test_the_accuracy_is_that_of_the_report(tmp_path: Path) -> None:
    """Outputs, holding and ceiling, with classes and intervals."""
    folder = write_streaming_run(tmp_path / "run", StreamingRunPlan(FRAMES, warped={n: n for n in range(1, FRAMES)}))
    write_truth(tmp_path / "truth.mcap", range(FRAMES))
    table = skylane.open_run(folder).accuracy(truth=tmp_path / "truth.mcap")
    expected = run_accuracy(load_run(folder), tmp_path / "truth.mcap")
    assert list(table.index) == ["at_tick", "held", "ceiling", "for_tick"]
    assert table.loc["for_tick", "accuracy"] == pytest.approx(1.0)
    assert table.loc["at_tick", "accuracy"] == pytest.approx(expected.at_tick.accuracy())
    assert table.attrs["after_due_ms"] == {"p50": 5.0, "p95": 5.0}
    assert table.loc["ceiling", "accuracy"] == pytest.approx(expected.ceiling.accuracy()) == pytest.approx(1.0)
    assert table.loc["held", "accuracy"] == pytest.approx(expected.held.accuracy())
    assert table.loc["held", "car"] == pytest.approx(expected.held.by_class()["car"])
    assert (table.attrs["metric"], table.attrs["scored"]) == ("mean IoU", FRAMES)


def test_the_outputs_of_a_presenter_are_a_table(tmp_path: Path) -> None:
    """Unknown numbers are <NA>, so that times stay exact."""
    opened = skylane.open_run(write_streaming_run(tmp_path / "run", StreamingRunPlan(FRAMES, warped={3: 1, 4: 2})))
    rows = list(read_presented(opened.folder))
    assert opened.outputs["tick"].tolist() == list(range(FRAMES))
    assert opened.outputs["presented_ns"].tolist() == [row.presented_ns for row in rows]
    assert opened.outputs["age_ns"].isna().sum() == FRAMES - 2
    assert opened.outputs["age_ns"].dtype == pd.Int64Dtype()
    with pytest.raises(SkylaneError, match=r"presented\.csv"):
        _ = skylane.open_run(write_streaming_run(tmp_path / "plain")).outputs


def test_the_masks_of_a_run_are_found_by_their_frame(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """They are read one at a time, as a run may have many thousands."""
    count = 3
    settings = {"broker": embedded_url, "model": "tiny", "closed_loop": True, "codec": "raw", "present": "hold"}
    with worker(embedded_url, model):
        played = list(skylane.play(pictures(tmp_path, count), out=tmp_path / "run", **settings))
    opened = skylane.open_run(tmp_path / "run")
    assert list(opened.masks) == opened.frames["sequence"].sort_values().tolist() == list(range(count))
    for sequence, mask in opened.masks.items():
        np.testing.assert_array_equal(mask, direct(model, noise(sequence, (HEIGHT, WIDTH, 3))[..., ::-1]))
    shown = {tick.sequence: tick.result for tick in played if tick.result is not None}
    assert opened.output_masks.keys() == shown.keys()
    for sequence, mask in opened.output_masks.items():
        np.testing.assert_array_equal(mask, shown[sequence])


def test_a_mask_that_is_not_stored_is_named(run: Path) -> None:
    """As in any mapping, `in` and `get` work; the error says what there is."""
    masks = skylane.open_run(run).masks
    assert 0 not in masks
    assert masks.get(0) is None
    with pytest.raises(SkylaneError, match=r"masks has no mask of frame 0: it has 0, stored by the sink png"):
        masks[0]


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    """The error is the report's."""
    with pytest.raises(SkylaneError, match=r"latency\.csv"):
        skylane.open_run(tmp_path)
