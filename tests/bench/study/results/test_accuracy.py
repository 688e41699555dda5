from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench.study.cli import study
from bench.study.results.accuracy import compare_masks
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from tests.support.simulated_study import plan_file

MODELS = Path(__file__).parents[4] / "models"
_CAMERA = "/sensors/camera/left"
_NAMES = ("road", "car", "none")
_TRUTHS = [np.full((4, 6), class_id, np.uint8) for class_id in (0, 1, 0)]


def _bag(path: Path, topics: Mapping[str, list[Pixels]], stamps: list[int]) -> Path:
    """Writes images with stamps in seconds; the recorder's time counts the messages."""
    with BagWriter(path) as writer:
        for index, stamp_s in enumerate(stamps):
            for number, (topic, images) in enumerate(topics.items()):
                at_ns = (100 + index) * 1_000_000_000 + number
                writer.write_image(topic, images[index], "mono8", stamp_s * 1_000_000_000, at_ns, "camera")
    return path


def _labelled(folder: Path, suffix: str = "labels") -> Path:
    """Writes a bag of three frames of the classes 0, 1 and 0, whose labels are on the topic …/<suffix>."""
    topics: dict[str, list[Pixels]] = {f"{_CAMERA}/image_raw": [*_TRUTHS], f"{_CAMERA}/{suffix}": [*_TRUTHS]}
    return _bag(folder / "truth", topics, [1, 2, 3])


def test_masks_are_compared_with_the_labels_of_their_stamps(tmp_path: Path) -> None:
    """The drive is played twice, one frame is lost, and of another only a part was seen and is half wrong."""
    partial = np.array([[1] * 6, [0] * 6, [255] * 6, [255] * 6], np.uint8)
    masks: list[Pixels] = [_TRUTHS[0], partial, _TRUTHS[0], _TRUTHS[1], _TRUTHS[2]]
    _bag(tmp_path / "vehicle-1" / "masks_bag", {f"{_CAMERA}/masks": masks}, [1, 2, 1, 2, 3])
    columns = compare_masks(tmp_path, _labelled(tmp_path), _NAMES)
    road, car = 3 * 24 / (3 * 24 + 6), (24 + 6) / (24 + 12)
    assert columns["mean_iou"] == pytest.approx((road + car) / 2)
    assert columns["pixel_accuracy"] == pytest.approx((3 * 24 + 24 + 6) / (3 * 24 + 24 + 12))
    assert columns["masks_compared"] == 5
    assert not (tmp_path / "vehicle-1" / "masks_bag").exists()


def test_masks_without_labels_of_their_stamp_are_not_compared(tmp_path: Path) -> None:
    """Labels of some frames are common in recordings; without any common stamp, the run fails."""
    _bag(tmp_path / "vehicle-1" / "masks_bag", {f"{_CAMERA}/masks": [*_TRUTHS]}, [1, 5, 6])
    bag = _labelled(tmp_path)
    assert compare_masks(tmp_path, bag, _NAMES)["masks_compared"] == 1
    _bag(tmp_path / "vehicle-1" / "masks_bag", {f"{_CAMERA}/masks": [*_TRUTHS]}, [4, 5, 6])
    with pytest.raises(SkylaneError, match="has labels of its timestamp and size"):
        compare_masks(tmp_path, bag, _NAMES)


def test_a_run_without_answers_has_no_accuracy(tmp_path: Path) -> None:
    """A link can lose every frame; the other values of the run remain."""
    _bag(tmp_path / "vehicle-1" / "masks_bag", {}, [])
    assert compare_masks(tmp_path, _labelled(tmp_path), _NAMES) == {"masks_compared": 0}


@pytest.mark.parametrize(
    ("model", "suffix", "expected"),
    [
        ("road-small", "depth", "holds no true labels (a topic …/labels)"),
        ("road-objects", "labels", "accuracy: true compares masks, and model 'road-objects' is for detection"),
    ],
)
def test_a_study_without_truth_is_refused_before_its_first_run(
    model: str, suffix: str, expected: str, tmp_path: Path
) -> None:
    """Otherwise it would be noticed after hours of measurements."""
    bag = _labelled(tmp_path, suffix)
    file = plan_file(tmp_path, bag=str(bag), accuracy=True, axes={"model": model, "scenario": "different_images"})
    arguments = ["run", str(file), "--models", str(MODELS), "--out", str(tmp_path / "study")]
    with pytest.raises(SkylaneError) as caught:
        CliRunner().invoke(study, arguments, catch_exceptions=False)
    assert expected in str(caught.value)
    assert not (tmp_path / "study").exists()
