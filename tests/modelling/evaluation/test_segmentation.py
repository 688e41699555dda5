import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs, Precision
from cloud.models.model import Model
from modelling.evaluation.segmentation import EvaluationError, SegmentationEvaluation, evaluate_segmentation, prepared
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard, Task

_NAMES = ("dark", "light", "none")
_HEIGHT, _WIDTH = 8, 12


def _card(**changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "name": "threshold",
        "version": "1",
        "sha256": "0" * 64,
        "task": Task.SEGMENTATION,
        "height": _HEIGHT // 2,
        "width": _WIDTH // 2,
        "layout": Layout.RGB8,
        "resize": Resize.STRETCH,
        "labels": Labels(_NAMES, ((0, 0, 0), (255, 255, 255), (1, 1, 1))),
        "trained": True,
    }
    return ModelCard(**fields | changes)


class _Threshold:
    """An engine whose answer can be told by hand: class 1 where red is bright."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        return {"mask": (batch[..., 0] > 100).astype(np.uint8)}

    def close(self) -> None:
        """Nothing is held."""


def _model(**changes: Any) -> Model:
    manifest: Any = SimpleNamespace(batching=SimpleNamespace(max_size=1))
    return Model(manifest, _card(**changes), _Threshold())


def _bag(path: Path, frames: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]], late: int = 0) -> Path:
    """A bag of Bayer pictures and true labels; the labels' stamps are `late` ns off."""
    with BagWriter(path) as writer:
        for index, (picture, truth) in enumerate(frames):
            stamp_ns = 1_000_000_000 + index * 100_000_000
            writer.write_image("/cam/image_raw", picture, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            writer.write_image("/cam/labels", truth, "mono8", stamp_ns + late, stamp_ns + 1000, "cam")
    return path


def _half() -> npt.NDArray[np.uint8]:
    """Dark on the left, light on the right."""
    picture = np.zeros((_HEIGHT, _WIDTH), np.uint8)
    picture[:, _WIDTH // 2 :] = 255
    return picture


def test_the_figures_of_a_hand_made_example(tmp_path: Path) -> None:
    """96 pixels: 48 dark and 48 light by the model; by the truth the last 16 light ones are dark, and 8 dark ones none."""
    truth = (_half() > 0).astype(np.uint8)
    truth[:, -2:] = 0
    truth[:, 0] = 2
    result = evaluate_segmentation(_model(), _bag(tmp_path / "bag", [(_half(), truth)]))
    np.testing.assert_array_equal(result.confusion.counts, [[40, 16, 0], [0, 32, 0], [8, 0, 0]])
    assert result.confusion.pixel_accuracy == 72 / 96
    iou_dark, iou_light = 40 / (40 + 16 + 8), 32 / (32 + 16)
    assert result.mean_iou == pytest.approx((iou_dark + iou_light) / 2)
    assert result.confusion.intersection_over_union().tolist() == pytest.approx([iou_dark, iou_light, 0.0])


def test_a_class_that_the_truth_lacks_is_not_in_the_mean(tmp_path: Path) -> None:
    """Its false pixels already count against the classes that they were taken from."""
    truth = np.zeros((_HEIGHT, _WIDTH), np.uint8)
    result = evaluate_segmentation(_model(), _bag(tmp_path / "bag", [(_half(), truth)]))
    assert result.mean_iou == pytest.approx(0.5)


def test_what_a_crop_cut_off_is_not_judged(tmp_path: Path) -> None:
    """The model never saw it."""
    truth = (_half() > 0).astype(np.uint8)
    truth[:, :2] = truth[:, -2:] = 2
    model = _model(height=4, width=4, resize=Resize.CROP)
    result = evaluate_segmentation(model, _bag(tmp_path / "bag", [(_half(), truth)]))
    np.testing.assert_array_equal(result.confusion.counts, [[32, 0, 0], [0, 32, 0], [0, 0, 0]])


def test_true_classes_that_the_model_does_not_have_are_counted_apart(tmp_path: Path) -> None:
    """Labels of a richer data set do not crash the table, nor pass in silence."""
    truth = (_half() > 0).astype(np.uint8)
    truth[0] = 40
    result = evaluate_segmentation(_model(), _bag(tmp_path / "bag", [(_half(), truth)]))
    assert result.foreign_pixels == _WIDTH
    assert result.confusion.counts.sum() == (_HEIGHT - 1) * _WIDTH
    assert result.confusion.pixel_accuracy == 1.0


def test_frames_are_matched_by_stamp_and_limited(tmp_path: Path) -> None:
    """A frame compared with its neighbour's labels would look like a bad model."""
    bright, dark = np.full((_HEIGHT, _WIDTH), 255, np.uint8), np.zeros((_HEIGHT, _WIDTH), np.uint8)
    frames = [(bright, bright // 255), (dark, dark), (bright, bright // 255)]
    bag = _bag(tmp_path / "bag", frames)
    done: list[tuple[int, int | None]] = []
    result = evaluate_segmentation(_model(), bag, on_frame=lambda *progress: done.append(progress))
    assert (result.frames, result.unmatched, result.confusion.pixel_accuracy) == (3, 0, 1.0)
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert evaluate_segmentation(_model(), bag, frames=2).frames == 2


def test_a_bag_whose_labels_bear_other_stamps_is_refused(tmp_path: Path) -> None:
    """Nothing can be compared: better no figure than a wrong one."""
    bag = _bag(tmp_path / "bag", [(_half(), _half() // 255)], late=1)
    with pytest.raises(EvaluationError, match="no picture on /cam/image_raw has labels of the same stamp"):
        evaluate_segmentation(_model(), bag)


def test_a_bag_without_labels_or_without_the_camera_says_so(tmp_path: Path) -> None:
    """The nearest camera is offered; a missing slash is forgiven."""
    with BagWriter(tmp_path / "bare") as writer:
        writer.write_image("/cam/image_raw", _half(), "bayer_rggb8", 1, 1, "cam")
    with pytest.raises(EvaluationError, match="holds no true labels"):
        evaluate_segmentation(_model(), tmp_path / "bare")
    bag = _bag(tmp_path / "bag", [(_half(), _half() // 255)])
    with pytest.raises(EvaluationError, match=r"no camera with labels on '/cam/image': did you mean /cam/image_raw"):
        evaluate_segmentation(_model(), bag, camera="/cam/image")
    assert evaluate_segmentation(_model(), bag, camera="cam/image_raw").frames == 1
    with pytest.raises(SkylaneError):
        evaluate_segmentation(_model(), tmp_path / "absent")


def test_labels_of_another_size_are_refused(tmp_path: Path) -> None:
    """They belong to another picture."""
    bag = _bag(tmp_path / "bag", [(_half(), np.zeros((4, 4), np.uint8))])
    with pytest.raises(EvaluationError, match="labels must be mono8 of the picture's size"):
        evaluate_segmentation(_model(), bag)


def test_a_model_that_answers_unnamed_classes_is_refused(tmp_path: Path) -> None:
    """Its wrong pixels must not fall out of the count."""
    bag = _bag(tmp_path / "bag", [(_half(), _half() // 255)])
    with pytest.raises(EvaluationError, match="answers class 1, but names only 1"):
        evaluate_segmentation(_model(labels=Labels(("dark",), ((0, 0, 0),))), bag)


def test_the_json_holds_every_figure_in_plain_types(tmp_path: Path) -> None:
    """Scripts read it; a figure that does not exist is null, which NaN is not."""
    result: SegmentationEvaluation = evaluate_segmentation(
        _model(), _bag(tmp_path / "bag", [(_half(), _half() // 255)])
    )
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (told["mean_iou"], told["pixel_accuracy"], told["iou"]) == (
        1.0,
        1.0,
        {"dark": 1.0, "light": 1.0, "none": None},
    )
    assert told["confusion"] == [[48, 0, 0], [0, 48, 0], [0, 0, 0]]
    assert len(told["bag_sha256"]) == 64


def test_a_picture_is_prepared_in_the_cards_colour_order() -> None:
    """Red and blue swapped cost 16 to 20 points of mean IoU, and look almost right."""
    cell = np.tile(np.array([[200, 20], [20, 10]], np.uint8), (_HEIGHT // 2, _WIDTH // 2))
    for layout, expected in ((Layout.RGB8, [200, 20, 10]), (Layout.BGR8, [10, 20, 200])):
        image, geometry = prepared(cell, Layout.BAYER_RGGB8, _card(layout=layout), "binning")
        assert image.shape == (_HEIGHT // 2, _WIDTH // 2, 3)
        assert image[0, 0].tolist() == expected
        assert (geometry.source_height, geometry.source_width) == (_HEIGHT, _WIDTH)
