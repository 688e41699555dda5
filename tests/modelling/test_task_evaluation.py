"""Evaluation and trial of classifiers and detectors, with engines whose answer can be told by hand."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs, Precision
from cloud.models.manifest import DetectionSection, Manifest
from cloud.models.model import Model
from modelling.evaluation.detection import DetectionEvaluation
from modelling.evaluation.dispatch import judged
from modelling.evaluation.segmentation import EvaluationError
from modelling.inspection import image_run
from modelling.tables import evaluation_line, evaluation_table, result_table
from rosbag_tools.bag_format import BagFormat
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.boxes import read_boxes
from rosbag_tools.messages.images import MalformedMessageError
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.records import Message
from rosbag_tools.writer import BagWriter
from shared.errors import UnknownNameError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.image_files import read_image_file
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Classification, Detections, Tensors

HEIGHT, WIDTH = 80, 120
CAR = Box("car", 20, 30, 40, 30)
WALKER = Box("person", 80, 20, 14, 40)


class _Fixed:
    """An engine that always answers the same, once for each picture."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def __init__(self, answer: dict[str, npt.NDArray[np.float32]]) -> None:
        self._answer = answer

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        return {head: np.repeat(values[np.newaxis], len(batch), axis=0) for head, values in self._answer.items()}

    def close(self) -> None:
        """Nothing is held."""


def _model(task: Task, names: tuple[str, ...], **answer: npt.NDArray[np.float32]) -> Model:
    """A model of half the picture's size."""
    size = SimpleNamespace(height=HEIGHT // 2, width=WIDTH // 2)
    fields: dict[str, Any] = {
        "batching": SimpleNamespace(max_size=1),
        "warm_up": SimpleNamespace(runs=1),
        "detection": DetectionSection(),
        "input": size,
        "top_k": 2,
    }
    labels = Labels(names, ((255, 0, 0), (0, 255, 0), (0, 0, 255))[: len(names)])
    card = ModelCard(
        "stub", "1", "0" * 64, task, size.height, size.width, Layout.RGB8, Resize.CROP, labels, trained=True
    )
    return Model(Manifest.model_construct(**fields), card, _Fixed(answer))


def _detector(names: tuple[str, ...] = ("vehicle", "person")) -> Model:
    """One that finds the car, in pixels of its input, and no walker."""
    boxes = np.array([[10, 15, 30, 30], [0, 0, 5, 5]], np.float32)
    return _model(Task.DETECTION, names, boxes=boxes, scores=np.array([[0.9, 0.0], [0.0, 0.01]], np.float32))


def _classifier() -> Model:
    return _model(Task.CLASSIFICATION, ("clear", "fog", "rain"), scores=np.array([0.1, 0.7, 0.2], np.float32))


def _judged(model: Model, bag: Path, truth: str | None = None, frames: int | None = None) -> Any:
    return judged(
        model, bag, truth=truth, camera=None, frames=frames, demosaic="binning", on_frame=lambda _done, _of: None
    )


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """Three pictures, the last without boxes."""
    picture = np.full((HEIGHT, WIDTH), 90, np.uint8)
    with BagWriter(tmp_path / "bag") as writer:
        for stamp_ns in (1, 2, 3):
            writer.write_image("/cam/image_raw", picture, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            if stamp_ns < 3:
                writer.write_boxes(
                    "/cam/boxes",
                    [CAR, WALKER, Box("tram", 0, 0, 30, 30)],
                    stamp_ns=stamp_ns,
                    received_ns=stamp_ns,
                    frame_id="cam",
                )
    return tmp_path / "bag"


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_boxes_come_back_as_they_were_written(tmp_path: Path, bag_format: BagFormat) -> None:
    """ROS 1 numbers what was seen and ROS 2 names it; a detector is judged by either."""
    path = tmp_path / ("drive.bag" if bag_format is BagFormat.ROS1 else "drive")
    with BagWriter(path, bag_format) as writer:
        writer.write_boxes("/cam/boxes", [CAR, WALKER], stamp_ns=3, received_ns=4, frame_id="cam")
    with Bag(path) as opened:
        (message,) = opened.messages()
    assert isinstance(message, Message)
    assert read_boxes(message) == [CAR, WALKER]
    torn = Message(message.channel, message.time_ns, message.data[: len(message.data) // 2])
    with pytest.raises(MalformedMessageError, match="cannot be read as"):
        read_boxes(torn)


def test_a_detector_is_judged_by_the_boxes_beside_the_pictures(bag: Path) -> None:
    """In pixels of its input, by its own classes: a car is a vehicle, a tram is nothing that it knows."""
    result = _judged(_detector(), bag)
    assert isinstance(result, DetectionEvaluation)
    assert (result.frames, result.unmatched, result.foreign_boxes) == (2, 1, 2)
    vehicle, person = result.figures["vehicle"]["from_12_px"], result.figures["person"]["from_12_px"]
    assert vehicle == {"truths": 2, "average_precision": 1.0, "recall": 1.0, "precision": 1.0}
    assert person == {"truths": 0, "average_precision": None, "recall": None, "precision": None}
    assert result.figures["person"]["from_6_px"]["recall"] == 0
    told = json.loads(json.dumps(result.to_json()))
    assert told["figures"] == result.figures
    assert evaluation_table(result, "stub").row_count == 6
    assert "2 frames · 1 without boxes" in evaluation_line(result)


def test_a_detector_of_the_drive_s_own_classes_is_judged_by_them(bag: Path) -> None:
    """Somebody else's detector has other classes than ours."""
    result = _judged(_detector(("car", "bicycle")), bag)
    assert result.figures["car"]["from_6_px"]["recall"] == 1
    assert result.foreign_boxes == 4
    with pytest.raises(EvaluationError, match=r"\(cat, dog\) are none of the drive's"):
        _judged(_detector(("cat", "dog")), bag)


def test_a_classifier_is_judged_by_what_all_frames_are(bag: Path) -> None:
    """A bag has no topic of the weather: whoever recorded it knows."""
    result = _judged(_classifier(), bag, "fog", frames=2)
    assert (result.frames, result.accuracy, result.taken_for) == (2, 1.0, (0, 2, 0))
    assert result.to_json()["taken_for"] == {"clear": 0, "fog": 2, "rain": 0}
    assert "accuracy 1.0000 for fog · 2 frames" in evaluation_line(result)
    assert evaluation_table(result, "stub").row_count == 3
    assert _judged(_classifier(), bag, "rain").accuracy == 0
    with pytest.raises(EvaluationError, match=r"--truth clear\|fog\|rain"):
        _judged(_classifier(), bag)
    with pytest.raises(UnknownNameError, match="did you mean fog"):
        _judged(_classifier(), bag, "fogg")


def test_what_cannot_be_judged_is_refused(bag: Path) -> None:
    """A flag that does nothing, or a table of nothing, would pass for an answer."""
    with pytest.raises(EvaluationError, match="--truth is for a classifier"):
        _judged(_detector(), bag, "fog")
    with pytest.raises(EvaluationError, match="raw tensors"):
        _judged(_model(Task.TENSORS, (), features=np.zeros(3, np.float32)), bag)


def test_a_trial_of_a_detector_gives_boxes_in_the_pictures_own_pixels(tmp_path: Path) -> None:
    """They are drawn on the picture that was given, not on the model's smaller one."""
    rgb = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    tried = image_run.run(_detector(), rgb)
    assert isinstance(tried.result, Detections)
    np.testing.assert_allclose(tried.result.boxes, [[20, 30, 60, 60]], atol=1e-3)
    (path,) = image_run.write(tried, rgb, tmp_path, "street")
    assert path.name == "street_overlay.png"
    drawn = read_image_file(path)
    assert drawn.shape == rgb.shape
    assert drawn[60, 40].tolist() == [255, 0, 0]
    assert result_table(tried.result, tried.card).row_count == 1


def test_a_trial_of_a_classifier_gives_its_best_classes(tmp_path: Path) -> None:
    """As many as the manifest says, the best first."""
    rgb = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    tried = image_run.run(_classifier(), rgb)
    assert isinstance(tried.result, Classification)
    assert tried.result.class_ids == (1, 2)
    assert tried.result.scores == pytest.approx((0.7, 0.2))
    assert [path.name for path in image_run.write(tried, rgb, tmp_path, "street")] == ["street_overlay.png"]
    assert result_table(tried.result, tried.card).row_count == 2


def test_a_trial_of_raw_tensors_keeps_them_as_they_are(tmp_path: Path) -> None:
    """There is nothing to draw."""
    rgb = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    tried = image_run.run(_model(Task.TENSORS, (), features=np.arange(3, dtype=np.float32)), rgb)
    assert isinstance(tried.result, Tensors)
    (path,) = image_run.write(tried, rgb, tmp_path / "out", "street")
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["features"], [0, 1, 2])
    assert result_table(tried.result, tried.card).row_count == 1
