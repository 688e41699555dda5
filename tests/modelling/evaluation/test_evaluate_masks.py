import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings, prepared
from modelling.evaluation.evaluate import evaluate_segmentation
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.models.manifest import Precision

_NAMES = ("dark", "light", "none")
_HEIGHT, _WIDTH = 8, 12


def _card(**changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "name": "threshold",
        "version": "1",
        "sha256": "0" * 64,
        "task": "segmentation",
        "height": _HEIGHT // 2,
        "width": _WIDTH // 2,
        "layout": Layout.RGB8,
        "resize": Resize.STRETCH,
        "labels": Labels(_NAMES, ((0, 0, 0), (255, 255, 255), (1, 1, 1))),
        "trained": True,
    }
    return ModelCard(**fields | changes)


class _Threshold:
    """An engine that predicts class 1 for pixels with a bright red channel."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        return {"mask": (batch[..., 0] > 100).astype(np.uint8)}

    def close(self) -> None:
        """Does nothing."""


def _model(**changes: Any) -> Model:
    manifest: Any = SimpleNamespace(batching=SimpleNamespace(max_size=1))
    return Model(manifest, _card(**changes), _Threshold())


def _bag(path: Path, frames: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]], late_ns: int = 0) -> Path:
    """Writes a bag of Bayer images and true labels, whose timestamps are `late_ns` later."""
    with BagWriter(path) as writer:
        for index, (image, truth) in enumerate(frames):
            stamp_ns = 1_000_000_000 + index * 100_000_000
            writer.write_image("/cam/image_raw", image, "bayer_rggb8", stamp_ns, stamp_ns, "cam")
            writer.write_image("/cam/labels", truth, "mono8", stamp_ns + late_ns, stamp_ns + 1000, "cam")
    return path


def _named_bag(path: Path, truth: npt.NDArray[np.uint8], names: Sequence[str]) -> Path:
    """Writes a bag of one image whose labels have names."""
    with BagWriter(path) as writer:
        writer.write_label_info("/cam/label_info", names, stamp_ns=1, received_ns=1, frame_id="cam")
        writer.write_image("/cam/image_raw", _half(), "bayer_rggb8", 1, 1, "cam")
        writer.write_image("/cam/labels", truth, "mono8", 1, 1, "cam")
    return path


def test_labels_with_names_are_compared_by_name(tmp_path: Path) -> None:
    """The data set has other ids, and a class that the network does not have; a class without a counterpart is wrong."""
    truth = np.where(_half() > 0, 0, 2).astype(np.uint8)
    truth[0, :3], truth[1, :2] = 1, 255
    result = evaluate_segmentation(_model(), _named_bag(tmp_path / "bag", truth, ("Light", "dog", "dark")))
    assert (result.mean_iou, result.classes.names) == (1.0, ("Light", "dark", "none"))
    assert (result.truth.labelled, result.truth.ignored, result.truth.foreign) == (94, 3, 5)
    assert "not scored, as the network has no such class: dog (3.2 % of the labelled pixels)" in result.summary
    found = result.to_json()
    assert found["classes"] == {"compared": ["Light", "dark"], "ignored": ["dog"], "always_wrong": ["none"]}
    assert found["iou"] == {"Light": 1.0, "dark": 1.0, "none": None}


def test_a_map_file_joins_classes(tmp_path: Path) -> None:
    """Both classes of the network are the ground."""
    (tmp_path / "map.yaml").write_text("dark: ground\nlight: ground\n")
    bag = _named_bag(tmp_path / "bag", np.zeros((_HEIGHT, _WIDTH), np.uint8), ("ground",))
    result = evaluate_segmentation(_model(), bag, EvaluationSettings(map_file=tmp_path / "map.yaml"))
    assert (result.mean_iou, result.confusion.pixel_accuracy) == (1.0, 1.0)


def test_labels_of_which_no_pixel_can_be_compared_are_refused(tmp_path: Path) -> None:
    """The names match, but the drive shows only what the network does not know."""
    bag = _named_bag(tmp_path / "bag", np.ones((_HEIGHT, _WIDTH), np.uint8), ("light", "dog"))
    with pytest.raises(EvaluationError, match=r"none of its 96 labelled pixels .* dog \(100.0 % .* another map"):
        evaluate_segmentation(_model(), bag)


def _half() -> npt.NDArray[np.uint8]:
    """Returns an image that is dark on the left and light on the right."""
    image = np.zeros((_HEIGHT, _WIDTH), np.uint8)
    image[:, _WIDTH // 2 :] = 255
    return image


def test_the_metrics_of_a_small_example_are_exact(tmp_path: Path) -> None:
    """In the truth, 16 of the light pixels are dark and 8 dark ones none; another frame is of a class that the model lacks."""
    truth = (_half() > 0).astype(np.uint8)
    truth[:, -2:], truth[:, 0] = 0, 2
    dog = np.full((_HEIGHT, _WIDTH), 40, np.uint8)
    result = evaluate_segmentation(_model(), _bag(tmp_path / "bag", [(_half(), truth), (_half(), dog)]))
    np.testing.assert_array_equal(result.confusion.counts, [[40, 16, 0], [0, 32, 0], [8, 0, 0]])
    assert (result.confusion.pixel_accuracy, result.truth.foreign) == (72 / 96, 96)
    iou_dark, iou_light = 40 / (40 + 16 + 8), 32 / (32 + 16)
    assert result.mean_iou == pytest.approx((iou_dark + iou_light) / 2)
    assert result.confusion.intersection_over_union().tolist() == pytest.approx([iou_dark, iou_light, 0.0])


def test_pixels_outside_of_the_models_crop_are_not_evaluated(tmp_path: Path) -> None:
    """The model has no prediction for them."""
    truth = (_half() > 0).astype(np.uint8)
    truth[:, :2] = truth[:, -2:] = 2
    model = _model(height=4, width=4, resize=Resize.CROP)
    result = evaluate_segmentation(model, _bag(tmp_path / "bag", [(_half(), truth)]))
    np.testing.assert_array_equal(result.confusion.counts, [[32, 0, 0], [0, 32, 0], [0, 0, 0]])


def test_frames_are_matched_by_timestamp_and_limited(tmp_path: Path) -> None:
    """Three different frames match their own labels; `frames` limits their number."""
    bright, dark = np.full((_HEIGHT, _WIDTH), 255, np.uint8), np.zeros((_HEIGHT, _WIDTH), np.uint8)
    frames = [(bright, bright // 255), (dark, dark), (bright, bright // 255)]
    bag = _bag(tmp_path / "bag", frames)
    done: list[tuple[int, int | None]] = []
    result = evaluate_segmentation(_model(), bag, EvaluationSettings(on_frame=lambda *progress: done.append(progress)))
    assert (result.frames, result.unmatched, result.confusion.pixel_accuracy) == (3, 0, 1.0)
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert evaluate_segmentation(_model(), bag, EvaluationSettings(frames=2)).frames == 2


def test_a_bag_without_labels_of_the_images_is_refused(tmp_path: Path) -> None:
    """There is nothing to compare, or labels of another image. The error suggests the nearest camera."""
    late = _bag(tmp_path / "late", [(_half(), _half() // 255)], late_ns=1)
    with pytest.raises(EvaluationError, match="no image on /cam/image_raw has labels of the same timestamp"):
        evaluate_segmentation(_model(), late)
    small = _bag(tmp_path / "small", [(_half(), np.zeros((4, 4), np.uint8))])
    with pytest.raises(EvaluationError, match="labels must be mono8 of the image's size"):
        evaluate_segmentation(_model(), small)
    with BagWriter(tmp_path / "bare") as writer:
        writer.write_image("/cam/image_raw", _half(), "bayer_rggb8", 1, 1, "cam")
    with pytest.raises(EvaluationError, match="holds no true labels"):
        evaluate_segmentation(_model(), tmp_path / "bare")
    bag = _bag(tmp_path / "bag", [(_half(), _half() // 255)])
    with pytest.raises(EvaluationError, match=r"no camera with labels on '/cam/image': did you mean /cam/image_raw"):
        evaluate_segmentation(_model(), bag, EvaluationSettings(camera="/cam/image"))
    assert evaluate_segmentation(_model(), bag, EvaluationSettings(camera="cam/image_raw")).frames == 1
    with pytest.raises(SkylaneError):
        evaluate_segmentation(_model(), tmp_path / "absent")


def test_a_model_that_predicts_unnamed_classes_is_refused(tmp_path: Path) -> None:
    """Its wrong pixels must not be omitted."""
    bag = _bag(tmp_path / "bag", [(_half(), _half() // 255)])
    with pytest.raises(EvaluationError, match="predicts class 1, but names only 1"):
        evaluate_segmentation(_model(labels=Labels(("dark",), ((0, 0, 0),))), bag)


def test_the_json_contains_all_results_as_plain_types(tmp_path: Path) -> None:
    """An undefined number is null, because NaN is not valid JSON."""
    result = evaluate_segmentation(_model(), _bag(tmp_path / "bag", [(_half(), _half() // 255)]))
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert (document["mean_iou"], document["pixel_accuracy"], document["iou"]) == (
        1.0,
        1.0,
        {"dark": 1.0, "light": 1.0, "none": None},
    )
    assert document["confusion"] == [[48, 0, 0], [0, 48, 0], [0, 0, 0]]
    assert len(document["bag_sha256"]) == 64


def test_an_image_is_prepared_in_the_cards_channel_order() -> None:
    """Swapping red and blue costs 16 to 20 points of mean IoU."""
    cell = np.tile(np.array([[200, 20], [20, 10]], np.uint8), (_HEIGHT // 2, _WIDTH // 2))
    for layout, expected in ((Layout.RGB8, [200, 20, 10]), (Layout.BGR8, [10, 20, 200])):
        image, geometry = prepared(cell, Layout.BAYER_RGGB8, _card(layout=layout))
        assert image.shape == (_HEIGHT // 2, _WIDTH // 2, 3)
        assert image[0, 0].tolist() == expected
        assert (geometry.source_height, geometry.source_width) == (_HEIGHT, _WIDTH)
