"""Streaming accuracy of detections, on a real drive whose true boxes are also what the detector found."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.logs.run_log import load_run
from analysis.report.data.report_input import load_report_input
from analysis.report.results import report_json
from analysis.streaming.run_accuracy import RunAccuracy, run_accuracy
from rosbag_tools.drive.recording import CAMERA, DrivePlan, record
from rosbag_tools.drive.scene import OBJECTS, Box
from rosbag_tools.messages.ros_types import read_boxes, read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run

_HEIGHT, _WIDTH, _FRAMES = 240, 384, 20
_MODEL = {"task": "detection", "labels": [*OBJECTS], "height": _HEIGHT, "width": _WIDTH}


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bag of a drive with true boxes."""
    path = tmp_path_factory.mktemp("drives") / "drive"
    record(path, DrivePlan(seed=3, frames=_FRAMES, width=_WIDTH, height=_HEIGHT))
    return path


def _true_boxes(drive: Path) -> dict[int, list[Box]]:
    """Returns the true boxes by stamp, with the names of the detector's classes."""
    group = {name: group for group, names in OBJECTS.items() for name in names}
    with Bag(drive) as bag:
        return {
            read_stamp(message): [
                box._replace(name=group[box.name]) for box in read_boxes(message) if box.name in group
            ]
            for message in bag.messages({f"{CAMERA}/boxes"})
            if isinstance(message, Message)
        }


def _run(folder: Path, drive: Path, change: Callable[[list[Box]], Sequence[Box]], **plan: object) -> RunAccuracy:
    """Scores a run that found the true boxes of each frame, changed by a function."""
    settings = replace(StreamingRunPlan(frames=_FRAMES, model=_MODEL), **plan)  # type: ignore[arg-type]  # Its fields.
    run = write_streaming_run(folder / "run", settings)
    with BagWriter(run / "detections_bag", "mcap", "none") as writer:
        for stamp_ns, boxes in _true_boxes(drive).items():
            found = change(boxes)
            scores = [0.9] * len(found)
            writer.write_boxes(
                f"{CAMERA}/detections",
                found,
                stamp_ns=stamp_ns,
                received_ns=stamp_ns,
                frame_id="camera",
                scores=scores,
            )
    return run_accuracy(load_run(run), drive)


def test_old_boxes_are_less_right_than_fresh_ones(drive: Path, tmp_path: Path) -> None:
    """The detector finds every object; only what has moved since is wrong. Small objects count neither way."""
    accuracy = _run(tmp_path, drive, lambda boxes: boxes)
    assert accuracy.ceiling.accuracy() == 1.0
    assert 0.0 < accuracy.held.accuracy() < 1.0
    assert accuracy.held.accuracy(with_missing=True) < accuracy.held.accuracy()
    assert set(accuracy.ceiling.by_class()) <= set(OBJECTS)
    interval = accuracy.interval(accuracy.held)
    assert interval.low < interval.value < interval.high
    assert accuracy.cautions == []


def test_the_chapter_and_the_data_name_the_measure(drive: Path, tmp_path: Path) -> None:
    """Average precision instead of mean IoU."""
    _run(tmp_path, drive, lambda boxes: boxes)
    found = report_json(load_report_input([tmp_path / "run"], truths=[drive]))["streaming"]
    assert found["metric"] == "average precision"
    assert found["held"]["accuracy"]["value"] < found["ceiling"]["accuracy"]["value"] == 1.0


def test_found_boxes_of_no_object_lower_the_precision(drive: Path, tmp_path: Path) -> None:
    """Half of the boxes are in the sky."""
    accuracy = _run(tmp_path, drive, lambda boxes: [*boxes, *(box._replace(x=300.0, y=0.0) for box in boxes)])
    assert 0.3 < accuracy.ceiling.accuracy() < 0.9


def test_boxes_of_other_classes_are_counted_and_only_those_refused(drive: Path, tmp_path: Path) -> None:
    """A detector of persons is not judged by vehicles; a detector of boats cannot be judged in a street."""
    accuracy = _run(tmp_path / "persons", drive, lambda boxes: boxes, model={**_MODEL, "labels": ["person", "boat"]})
    assert set(accuracy.ceiling.by_class()) == {"person"}
    assert "% of the true boxes are not scored: the model has no bus, car" in accuracy.cautions[0]
    with pytest.raises(SkylaneError, match="no true box is of a class of the model: the boxes are bus, car"):
        _run(tmp_path / "boats", drive, lambda boxes: boxes, model={**_MODEL, "labels": ["boat", "buoy"]})


def test_a_bag_with_boxes_only_counts_pixels_of_the_frame(drive: Path, tmp_path: Path) -> None:
    """Without an image, the size of the frames is not known; the report says what counts instead."""
    with BagWriter(tmp_path / "boxes") as writer, Bag(drive) as bag:
        for message in bag.messages({f"{CAMERA}/boxes"}):
            assert isinstance(message, Message)
            stamp_ns = read_stamp(message)
            boxes = read_boxes(message)
            writer.write_boxes(f"{CAMERA}/boxes", boxes, stamp_ns=stamp_ns, received_ns=stamp_ns, frame_id="camera")
    _run(tmp_path, drive, lambda boxes: boxes)
    accuracy = run_accuracy(load_run(tmp_path / "run"), tmp_path / "boxes")
    assert accuracy.ceiling.accuracy() == 1.0
    assert "objects count from 12 pixels of the frame on" in accuracy.cautions[0]


def test_a_run_without_stored_detections_names_the_sink(drive: Path, tmp_path: Path) -> None:
    """Masks do not help a detector."""
    run = write_streaming_run(tmp_path / "run", StreamingRunPlan(model=_MODEL))
    with pytest.raises(SkylaneError, match=r"holds no detections_bag: .* --sink bag"):
        run_accuracy(load_run(run), drive)
