"""Streaming accuracy of runs: hand-made runs of a model that is always right, whose outputs are only old."""

import json
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from analysis.logs.run_log import load_run
from analysis.report.chapters.streaming import chapter, streaming_json
from analysis.report.content import Paragraph
from analysis.streaming.run_accuracy import RunAccuracy, run_accuracy
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.codec import Mask
from tests.support.streaming_runs import (
    CAMERA,
    DUE_NS,
    NAMES,
    STAMP_NS,
    STEP_NS,
    StreamingRunPlan,
    true_mask,
    write_streaming_run,
    write_truth,
)  # fmt: skip

_FRAMES = range(20)


def _accuracy(folder: Path, plan: StreamingRunPlan | None = None, **truth: object) -> RunAccuracy:
    """Scores a run against the labels of all its frames."""
    if not (folder / "truth").exists():
        write_truth(folder / "truth", _FRAMES, **truth)  # type: ignore[arg-type]  # Its keyword arguments.
    return run_accuracy(load_run(write_streaming_run(folder / "run", plan or StreamingRunPlan())), folder / "truth")


def _iou_of_car(lag: int) -> float:
    """The IoU of a car of 8 pixels that is drawn where it was some frames ago, at 2 pixels a frame."""
    return (8 - 2 * lag) / (8 + 2 * lag)


def test_a_run_without_a_presenter_is_scored_as_if_its_newest_result_were_held(tmp_path: Path) -> None:
    """A result takes 150 ms: at every tick, the newest one is that of the second frame before. The ceiling ignores that."""
    accuracy = _accuracy(tmp_path)
    assert accuracy.presenter == ""
    assert accuracy.at_tick is accuracy.held
    assert accuracy.for_tick is None
    assert accuracy.at_tick.by_class()["car"] == pytest.approx(_iou_of_car(2))
    assert accuracy.ceiling.accuracy() == 1.0
    assert accuracy.missing == {"no_result": 2}
    assert {tick.age_ns for tick in accuracy.scored} == {None, 2 * STEP_NS}
    assert accuracy.at_tick.accuracy(with_missing=True) < accuracy.at_tick.accuracy()
    assert (len(accuracy.ticks), len(accuracy.scored), accuracy.unscored, accuracy.cautions) == (20, 20, {}, [])


def test_labels_with_names_are_compared_by_name(tmp_path: Path) -> None:
    """The ids of the labels are 0 to 2 as those of the model, but stand for other classes: road for none, none for road."""
    accuracy = _accuracy(tmp_path, names=("road", "kerb", "Car"))
    assert accuracy.ceiling.names == ("road", "Car", "none")
    assert accuracy.ceiling.by_class() == pytest.approx({"road": 0.0, "Car": 1.0})
    assert "not scored, as the network has no such class: kerb (8" in accuracy.note
    assert streaming_json(accuracy)["classes"]["always_wrong"] == ["none"]
    assert accuracy.cautions == []
    assert Paragraph(accuracy.note) in chapter(accuracy).parts


def test_a_map_file_settles_other_names(tmp_path: Path) -> None:
    """The labels share no name with the model."""
    write_truth(tmp_path / "truth", _FRAMES, names=("sky", "asphalt", "vehicle"))
    (tmp_path / "map.yaml").write_text("road: asphalt\ncar: vehicle\nnone: sky\n")
    run = load_run(write_streaming_run(tmp_path / "run"))
    assert run_accuracy(run, tmp_path / "truth", tmp_path / "map.yaml").ceiling.accuracy() == 1.0


def test_unanswered_frames_are_ticks_too(tmp_path: Path) -> None:
    """A dropped frame needs an output as much as an answered one: the result before it is held for one more tick."""
    accuracy = _accuracy(tmp_path, StreamingRunPlan(unanswered=[5]))
    ages = {tick.sequence: tick.age_ns for tick in accuracy.ticks}
    assert len(ages) == 20
    assert (ages[6], ages[7], ages[8]) == (2 * STEP_NS, 3 * STEP_NS, 2 * STEP_NS)
    assert len(accuracy.ceiling.ticks) == 19


def test_outputs_of_a_presenter_are_scored_as_it_logged_them(tmp_path: Path) -> None:
    """This presenter moves each result perfectly to its tick, and is ready 5 ms after it: it is right one tick too late."""
    warped = {tick: tick for tick in _FRAMES if tick >= 2}
    accuracy = _accuracy(tmp_path, StreamingRunPlan(warped=warped))
    assert accuracy.presenter == "warp"
    assert accuracy.for_tick is not None
    assert accuracy.for_tick.accuracy() == 1.0
    assert accuracy.for_tick.origins() == {"warped": 18, "none": 2}
    assert list(accuracy.for_tick.by_age()) == [150]
    assert accuracy.after_due_ms.tolist() == [5.0] * 18
    assert accuracy.at_tick.by_class()["car"] == pytest.approx(_iou_of_car(1))
    assert accuracy.at_tick.origins() == {"warped": 17, "none": 3}
    assert accuracy.held.by_class()["car"] == pytest.approx(_iou_of_car(2))
    interval = accuracy.interval(accuracy.held)
    assert interval.low <= interval.value <= interval.high


def test_an_output_that_was_ready_after_later_ticks_counts_at_the_last_of_them(tmp_path: Path) -> None:
    """Tick 5's output took 230 ms, tick 6's and 7's 20 ms: at ticks 6 and 7, tick 4's and 6's are the newest that were ready."""
    warped = {tick: tick for tick in _FRAMES if tick not in (0, 1, 12, 13)}
    plan = StreamingRunPlan(warped=warped, after_due_ms={5: 230, 6: 20, 7: 20, 9: 100})
    accuracy = _accuracy(tmp_path, plan)
    found = {
        tick.sequence: (tick.source, None if tick.age_ns is None else tick.age_ns // STEP_NS)
        for tick in accuracy.scored
    }
    expected = {
        2: (None, None),
        3: (2, 3),
        5: (4, 3),
        6: (4, 4),
        7: (6, 3),
        8: (7, 3),
        9: (8, 3),
        10: (9, 3),
        13: (11, 4),
        14: (11, 5),
    }
    assert {tick: found[tick] for tick in expected} == expected
    assert accuracy.missing == {"no_result": 4}
    assert sorted(accuracy.after_due_ms.tolist()) == [5.0] * 12 + [20.0, 20.0, 100.0, 230.0]
    later = run_accuracy(load_run(tmp_path / "run"), tmp_path / "truth", warm_up=12)
    assert [(tick.sequence, tick.source) for tick in later.scored][:3] == [(12, 11), (13, 11), (14, 11)]
    assert (len(later.scored), len(later.after_due_ms), len(later.ceiling.ticks)) == (8, 6, 20)


def test_hold_counts_from_the_arrival_of_its_result(tmp_path: Path) -> None:
    """Whenever the presenter shows it: a result that arrived can be acted on, and one that came after due cannot."""
    late = dict.fromkeys(_FRAMES, 95.0)
    plan = StreamingRunPlan(warped={tick: tick - 1 for tick in _FRAMES[2:]}, presenter="hold", after_due_ms=late)
    accuracy = _accuracy(tmp_path, plan)
    assert accuracy.at_tick is accuracy.held
    assert accuracy.at_tick.by_class()["car"] == pytest.approx(_iou_of_car(2))
    assert accuracy.for_tick is not None
    assert accuracy.for_tick.by_class()["car"] == pytest.approx(_iou_of_car(1))
    assert set(accuracy.after_due_ms) == {95.0}
    text = chapter(accuracy).parts[0]
    assert isinstance(text, Paragraph)
    assert "ready 95 ms after due (p50; p95 95 ms)" in text.text


def test_outputs_without_the_time_at_which_they_were_ready_are_named(tmp_path: Path) -> None:
    """A damaged log cannot say that they counted at a tick; a log without the column is refused with its name."""
    write_truth(tmp_path / "truth", _FRAMES)
    folder = write_streaming_run(tmp_path / "run", StreamingRunPlan(warped={5: 5, 6: 6}))
    log = folder / "presented.csv"
    text = log.read_text(encoding="utf-8")
    log.write_text(text.replace(str(DUE_NS + 5 * STEP_NS + 5_000_000), ""), encoding="utf-8")
    accuracy = run_accuracy(load_run(folder), tmp_path / "truth")
    assert accuracy.cautions[0].startswith("1 outputs of presented.csv have no due_ns or presented_ns")
    assert {tick.source for tick in accuracy.scored} == {None, 6}
    assert accuracy.for_tick is not None
    assert accuracy.for_tick.origins() == {"none": 18, "warped": 2}
    log.write_text(text.replace("presented_ns", "shown_ns"), encoding="utf-8")
    with pytest.raises(SkylaneError, match=r"no log of outputs, or of another version: it has no presented_ns"):
        run_accuracy(load_run(folder), tmp_path / "truth")


def test_ticks_without_labels_are_counted_with_the_reason(tmp_path: Path) -> None:
    """Recordings are often labelled in part: the other ticks are left out of all scores."""
    write_truth(tmp_path / "truth", range(5, 9))
    accuracy = _accuracy(tmp_path)
    assert len(accuracy.scored) == 4
    assert accuracy.unscored == {"no labels of its stamp": 16}
    assert accuracy.cautions == ["16 of 20 ticks are not scored. no labels of its stamp: 16."]


def test_results_that_the_sink_left_out_are_not_held(tmp_path: Path) -> None:
    """What is not stored cannot be scored; the older result that is stored takes its place, and the report says so."""
    accuracy = _accuracy(tmp_path, StreamingRunPlan(not_stored=[7]))
    assert {tick.sequence: tick.source for tick in accuracy.ticks}[9] == 6
    assert len(accuracy.ceiling.ticks) == 19
    assert "1 results of the run are not in the bag of its sink" in accuracy.cautions[0]


def test_another_bag_than_the_played_one_is_a_caution(tmp_path: Path) -> None:
    """Labels that were added to a recording later are in another bag; those of another drive are wrong, and look the same."""
    sha256 = write_truth(tmp_path / "truth", _FRAMES)
    same = _accuracy(tmp_path / "a", StreamingRunPlan(source={"kind": "bag", "sha256": sha256}))
    assert same.cautions == []
    other = _accuracy(tmp_path / "b", StreamingRunPlan(source={"kind": "bag", "sha256": "f" * 64}))
    assert "played another bag" in other.cautions[0]
    assert "The ceiling of 1.000 must be near the accuracy" in other.cautions[0]


def test_classes_that_the_model_does_not_have_are_counted(tmp_path: Path) -> None:
    """Labels of another data set have more classes. Pixels of 255, without a label, are no such class."""

    def mask_of(frame: int) -> Mask:
        mask = true_mask(frame)
        mask[0], mask[20:] = 255, 9
        return mask

    accuracy = _accuracy(tmp_path, mask_of=mask_of)
    assert accuracy.cautions == [
        "17.4 % of the labelled pixels are not scored: they have class ids up to 9, and the model has 3 classes (0 to 2)."
    ]
    assert accuracy.at_tick.by_class()["car"] == pytest.approx(_iou_of_car(2))


def test_a_repeated_drive_is_matched_pass_by_pass(tmp_path: Path) -> None:
    """A bag played twice has each stamp twice; a result belongs to the frame of its own pass."""
    folder = write_streaming_run(tmp_path / "run")
    log = folder / "latency.csv"
    text = log.read_text(encoding="utf-8")
    for frame in range(10, 20):
        text = text.replace(str(STAMP_NS + frame * STEP_NS), str(STAMP_NS + (frame - 10) * STEP_NS))
    log.write_text(text, encoding="utf-8")
    rmtree(folder / "masks_bag")
    with BagWriter(folder / "masks_bag", "mcap", "none") as writer:
        for index, frame in enumerate((*range(10), *range(10))):
            stamp_ns, at_ns = STAMP_NS + frame * STEP_NS, STAMP_NS + index * STEP_NS
            writer.write_image(
                CAMERA.replace("image_raw", "masks"), true_mask(frame), "mono8", stamp_ns, at_ns, "camera"
            )
    write_truth(tmp_path / "truth", _FRAMES)
    accuracy = run_accuracy(load_run(folder), tmp_path / "truth")
    assert accuracy.ceiling.accuracy() == 1.0
    assert len(accuracy.ceiling.ticks) == 20
    assert {tick.sequence: tick.source for tick in accuracy.ticks}[12] == 10


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ({"frames": range(100, 120)}, "none of the 20 ticks of run can be compared .* is it the bag of another drive"),
        ({"frames": _FRAMES, "topic": "/right/labels"}, "it has them on /right/labels, which belong to another camera"),
        ({"frames": _FRAMES, "topic": "/sensors/camera/left/depth"}, "holds no true labels for the cameras of run"),
        ({"frames": _FRAMES, "encoding": "rgb8"}, "has rgb8 images: labels must be mono8 images of class ids"),
    ],
)
def test_a_bag_without_labels_of_the_run_is_refused(truth: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Each message says what is wrong with the bag."""
    write_truth(tmp_path / "truth", **truth)  # type: ignore[arg-type]  # Its keyword arguments.
    with pytest.raises(SkylaneError, match=expected):
        _accuracy(tmp_path)


@pytest.mark.parametrize("warped", [{}, {tick: tick for tick in _FRAMES}])
def test_labels_of_another_size_are_refused(warped: dict[int, int], tmp_path: Path) -> None:
    """The message has both sizes; ticks before the first result, which have no output, are no reason to go on."""
    with pytest.raises(SkylaneError, match=r"its labels have another size \(48×12, its output 96×24\)"):
        _accuracy(tmp_path, StreamingRunPlan(warped=warped), mask_of=lambda _: np.ones((12, 48), np.uint8))


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ({"mask_of": lambda _: np.full((24, 96), 30, np.uint8)}, "class ids up to 30, and the model has 3 classes"),
        ({"names": ("sky", "asphalt", "vehicle", "road")}, "none of the labelled pixels has a class to compare"),
    ],
)
def test_labels_of_unknown_classes_only_are_refused(truth: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """A score over no pixel would be no score."""
    with pytest.raises(SkylaneError, match=expected):
        _accuracy(tmp_path, **truth)


def test_a_bag_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, or no bag at all."""
    run = load_run(write_streaming_run(tmp_path / "run"))
    with pytest.raises(SkylaneError, match="the true labels cannot be read: there is no bag"):
        run_accuracy(run, tmp_path / "nowhere")
    (tmp_path / "text.mcap").write_text("no bag")
    with pytest.raises(SkylaneError, match="the true labels cannot be read: "):
        run_accuracy(run, tmp_path / "text.mcap")


def test_a_run_without_stored_masks_names_the_sink(tmp_path: Path) -> None:
    """Both the results and the outputs of a presenter are needed."""
    write_truth(tmp_path / "truth", _FRAMES)
    folder = write_streaming_run(tmp_path / "run", StreamingRunPlan(warped={5: 5}))
    (folder / "presented" / "masks_bag").rename(tmp_path / "away")
    with pytest.raises(SkylaneError, match=r"presented holds no masks_bag: .* play the run with --sink bag"):
        run_accuracy(load_run(folder), tmp_path / "truth")
    (folder / "masks_bag").rename(tmp_path / "far")
    with pytest.raises(SkylaneError, match=r"run holds no masks_bag: .* play the run with --sink bag"):
        run_accuracy(load_run(folder), tmp_path / "truth")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            {"sha256": "a" * 64},
            "does not name the classes of the model, as those of earlier versions: play the run again",
        ),
        (
            {"task": "classification", "labels": ["clear"], "height": 24, "width": 96},
            "its model is for classification, and streaming accuracy compares the results of segmentation",
        ),
    ],
)
def test_a_run_of_an_unknown_or_unsuitable_model_is_refused(
    model: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """The classes come from the manifest, which earlier versions did not write."""
    with pytest.raises(SkylaneError, match=expected):
        _accuracy(tmp_path, StreamingRunPlan(model=model))


def test_a_damaged_log_of_outputs_is_refused(tmp_path: Path) -> None:
    """A wrong row would shift or invent outputs."""
    write_truth(tmp_path / "truth", _FRAMES)
    folder = write_streaming_run(tmp_path / "run", StreamingRunPlan(warped={5: 5}))
    log = folder / "presented.csv"
    log.write_text(log.read_text(encoding="utf-8").replace("warped", "guessed"), encoding="utf-8")
    with pytest.raises(SkylaneError, match="'guessed' is no origin of an output"):
        run_accuracy(load_run(folder), tmp_path / "truth")


@pytest.mark.parametrize("column", ["sequence", "t_due_ns", "frame_stamp_ns", "total_ms", "camera"])
def test_a_damaged_row_of_the_log_costs_its_tick_only(column: str, tmp_path: Path) -> None:
    """The report of a damaged log must still have this chapter; its problems are listed elsewhere."""
    write_truth(tmp_path / "truth", _FRAMES)
    folder = write_streaming_run(tmp_path / "run")
    log = folder / "latency.csv"
    header, *rows = log.read_text(encoding="utf-8").splitlines()
    cells = rows[9].split(",")
    cells[header.split(",").index(column)] = "" if column != "camera" else "/other/image_raw"
    rows[9] = ",".join(cells)
    log.write_text("\n".join((header, *rows, "")), encoding="utf-8")
    accuracy = run_accuracy(load_run(folder), tmp_path / "truth")
    assert 18 <= len(accuracy.scored) <= 20
    assert 0.5 < accuracy.at_tick.accuracy() < 0.8


def test_a_run_without_frames_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare."""
    with pytest.raises(SkylaneError, match="has no frames, so there is nothing to compare"):
        _accuracy(tmp_path, StreamingRunPlan(frames=0))


def test_labels_of_a_damaged_message_are_counted(tmp_path: Path) -> None:
    """One unreadable image of labels costs one tick, not the report."""
    topic = CAMERA.replace("image_raw", "labels")
    with BagWriter(tmp_path / "truth") as writer:
        for frame in _FRAMES:
            stamp_ns = STAMP_NS + frame * STEP_NS
            encoding = "no such encoding" if frame == 6 else "mono8"
            writer.write_image(topic, true_mask(frame), encoding, stamp_ns, stamp_ns, "camera")
    assert _accuracy(tmp_path).unscored == {"its labels cannot be read": 1}


def test_the_rig_writes_what_a_vehicle_writes(tmp_path: Path) -> None:
    """The hand-made log has the columns and the manifest the keys of a real run."""
    folder = write_streaming_run(tmp_path / "run")
    run = load_run(folder)
    assert run.problems == ()
    assert int(run.frames["t_due_ns"].iloc[0]) == DUE_NS
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["model"]["labels"] == list(NAMES)
