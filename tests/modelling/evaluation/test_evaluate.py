"""Evaluation of detectors and classifiers with fixed outputs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings, truth_of
from modelling.evaluation.evaluate import DetectionEvaluation, evaluate_model
from rosbag_tools.bag_format import BagFormat
from rosbag_tools.drive.scene import HEIGHT_SHARE, PRESENCE, Box
from rosbag_tools.messages.ros_types import MalformedMessageError, read_boxes
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from rosbag_tools.writer import BagWriter
from shared.errors import UnknownNameError
from shared.inference.model import Model
from tests.support.stub_models import CAR, HEIGHT, WIDTH, classifier, detector, tensor_model

PEDESTRIAN = Box("person", 80, 20, 14, 40)


def _evaluate(model: Model, bag: Path, truth: str | None = None, frames: int | None = None) -> Any:
    return evaluate_model(model, bag, EvaluationSettings(truth, frames=frames))


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """A bag of three images, the last of which has no boxes."""
    image = np.full((HEIGHT, WIDTH), 90, np.uint8)
    with BagWriter(tmp_path / "bag") as writer:
        for stamp_ns in (1, 2, 3):
            writer.write_image("/cam/image_raw", image, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            if stamp_ns < 3:
                boxes = [CAR, PEDESTRIAN, Box("tram", 0, 0, 30, 30)]
                writer.write_boxes("/cam/boxes", boxes, stamp_ns=stamp_ns, received_ns=stamp_ns, frame_id="cam")
    return tmp_path / "bag"


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_boxes_are_read_as_they_were_written(tmp_path: Path, bag_format: BagFormat) -> None:
    """ROS 1 stores the class as a number and ROS 2 as a name; a truncated message is refused."""
    path = tmp_path / ("drive.bag" if bag_format is BagFormat.ROS1 else "drive")
    with BagWriter(path, bag_format) as writer:
        writer.write_boxes("/cam/boxes", [CAR, PEDESTRIAN], stamp_ns=3, received_ns=4, frame_id="cam")
    with Bag(path) as opened:
        (message,) = opened.messages()
    assert isinstance(message, Message)
    assert read_boxes(message) == [CAR, PEDESTRIAN]
    truncated = Message(message.channel, message.time_ns, message.data[: len(message.data) // 2])
    with pytest.raises(MalformedMessageError, match="cannot be read as"):
        read_boxes(truncated)


def test_a_map_is_for_masks(bag: Path, tmp_path: Path) -> None:
    """Boxes are compared by their names; a file that has no effect would be believed."""
    settings = EvaluationSettings(map_file=tmp_path / "map.yaml")
    with pytest.raises(EvaluationError, match=r"--map is for the classes of a segmentation, and .* is a detection"):
        evaluate_model(detector(), bag, settings)


def test_a_detector_is_evaluated_by_class_and_size(bag: Path) -> None:
    """Sizes are in pixels of its input; a car counts as a vehicle, and a tram as a foreign box."""
    result = _evaluate(detector(), bag)
    assert isinstance(result, DetectionEvaluation)
    assert (result.frames, result.unmatched, result.foreign_boxes) == (2, 1, 2)
    vehicle, person = result.metrics["vehicle"]["from_12_px"], result.metrics["person"]["from_12_px"]
    assert vehicle == {"truths": 2, "average_precision": 1.0, "recall": 1.0, "precision": 1.0}
    assert person == {"truths": 0, "average_precision": None, "recall": None, "precision": None}
    assert result.metrics["person"]["from_6_px"]["recall"] == 0
    assert json.loads(json.dumps(result.to_json()))["figures"] == result.metrics
    assert result.table("stub").row_count == 6
    assert "2 frames · 1 without boxes" in result.summary


def test_a_detector_with_the_drives_classes_is_evaluated_by_them(bag: Path) -> None:
    """Third-party detectors have other classes than the built-in one; without a common class, the bag is refused."""
    result = _evaluate(detector(("car", "bicycle")), bag)
    assert result.metrics["car"]["from_6_px"]["recall"] == 1
    assert result.foreign_boxes == 4
    with pytest.raises(EvaluationError, match=r"none of the model's classes \(cat, dog\) is one of the drive's"):
        _evaluate(detector(("cat", "dog")), bag)


def test_a_classifier_is_evaluated_with_the_class_of_all_frames(bag: Path) -> None:
    """A bag has no topic of the weather, so --truth is required."""
    result = _evaluate(classifier(), bag, "fog", frames=2)
    assert (result.frames, result.accuracy) == (2, 1.0)
    assert result.to_json()["taken_for"] == {"clear": 0, "fog": 2, "rain": 0}
    assert "accuracy 1.0000 for fog · 2 frames" in result.summary
    assert result.table("stub").row_count == 3
    assert _evaluate(classifier(), bag, "rain").accuracy == 0
    with pytest.raises(EvaluationError, match=r"--truth clear\|fog\|rain"):
        _evaluate(classifier(), bag)
    with pytest.raises(UnknownNameError, match="did you mean fog"):
        _evaluate(classifier(), bag, "fogg")


def test_a_large_box_of_a_vehicle_answers_whether_there_is_one() -> None:
    """Persons and vehicles in the distance do not count; a parked bus does."""
    assert truth_of([CAR, PEDESTRIAN], HEIGHT) == PRESENCE.index("vehicle")
    assert truth_of([Box("bus", 0, 0, 9, HEIGHT_SHARE * HEIGHT)], HEIGHT) == PRESENCE.index("vehicle")
    assert truth_of([PEDESTRIAN, Box("car", 20, 30, 40, HEIGHT_SHARE * HEIGHT - 1)], HEIGHT) == 0
    assert truth_of([], HEIGHT) == PRESENCE.index("no vehicle")


def test_a_classifier_of_presence_is_evaluated_with_the_boxes(bag: Path) -> None:
    """The answer changes during a bag, so its labels select the boxes as the truth; images without boxes are counted."""
    result = _evaluate(classifier(PRESENCE, (0.2, 0.8)), bag)
    assert (result.frames, result.unmatched, result.accuracy) == (2, 1, 1.0)
    assert _evaluate(classifier(PRESENCE, (0.7, 0.3)), bag, frames=1).accuracy == 0
    assert result.to_json()["confusion"] == [[0, 0], [0, 2]]
    assert "accuracy 1.0000 against the true boxes" in result.summary
    assert result.table("stub").row_count == 2
    assert _evaluate(classifier(PRESENCE, (0.2, 0.8)), bag, "vehicle").frames == 3


def test_an_impossible_evaluation_is_refused(bag: Path) -> None:
    """--truth has no effect on a detector, and raw tensors have no ground truth."""
    with pytest.raises(EvaluationError, match="--truth is for a classifier"):
        _evaluate(detector(), bag, "fog")
    with pytest.raises(EvaluationError, match="raw tensors"):
        _evaluate(tensor_model(), bag)
