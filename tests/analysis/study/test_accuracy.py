from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from analysis.study.accuracy import compare_masks
from ops.study.cli import study
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from tests.support.simulated_study import plan_file
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run, write_truth

MODELS = Path(__file__).parents[3] / "models"
_FRAMES = range(20)


def test_masks_and_outputs_of_all_vehicles_are_compared_and_removed(tmp_path: Path) -> None:
    """A mask is right for its own frame; what is held of it two ticks later is not. The masks would fill the disk."""
    write_truth(tmp_path / "truth", _FRAMES)
    for number in (1, 2):
        write_streaming_run(tmp_path / f"vehicle-{number}")
    columns = compare_masks(tmp_path, tmp_path / "truth", warm_up=4)
    assert (columns["mean_iou"], columns["pixel_accuracy"], columns["masks_compared"]) == (1.0, 1.0, 40)
    assert 0.5 < columns["at_tick_mean_iou"] < 0.8
    assert columns["at_tick_mean_iou_all_ticks"] == columns["at_tick_mean_iou"]
    assert not [name for name in columns if name.startswith(("for_tick", "after_due"))]
    assert (columns["output_age_p50_ms"], columns["output_age_p95_ms"]) == (200.0, 200.0)
    assert (columns["ticks_scored"], columns["ticks_without_output"]) == (32, 0)
    assert not list(tmp_path.glob("vehicle-*/masks_bag"))


def test_outputs_of_a_presenter_take_the_place_of_the_held_result(tmp_path: Path) -> None:
    """The ticks without an output count in the second value only; the stored outputs are removed too."""
    write_truth(tmp_path / "truth", _FRAMES)
    warped = {tick: tick for tick in _FRAMES if tick >= 10}
    write_streaming_run(tmp_path / "vehicle-1", StreamingRunPlan(warped=warped))
    columns = compare_masks(tmp_path, tmp_path / "truth", warm_up=0)
    assert columns["for_tick_mean_iou"] == 1.0
    assert columns["for_tick_mean_iou_all_ticks"] == pytest.approx(0.5)
    assert (columns["after_due_p50_ms"], columns["after_due_p95_ms"]) == (5.0, 5.0)
    assert columns["at_tick_mean_iou_all_ticks"] < columns["at_tick_mean_iou"] < 0.9
    assert (columns["ticks_scored"], columns["ticks_without_output"]) == (20, 11)
    assert not list((tmp_path / "vehicle-1").rglob("masks_bag"))


def test_masks_without_labels_of_their_stamp_are_not_compared(tmp_path: Path) -> None:
    """Labels of some frames are common in recordings; without any common stamp, the run fails."""
    write_truth(tmp_path / "part", range(5, 9))
    write_streaming_run(tmp_path / "vehicle-1")
    columns = compare_masks(tmp_path, tmp_path / "part", warm_up=0)
    assert (columns["masks_compared"], columns["ticks_scored"]) == (4, 4)
    write_truth(tmp_path / "other", range(100, 104))
    write_streaming_run(tmp_path / "again" / "vehicle-1")
    with pytest.raises(SkylaneError, match="none of the 20 ticks of vehicle-1 can be compared"):
        compare_masks(tmp_path / "again", tmp_path / "other", warm_up=0)


def test_a_run_without_answers_has_no_accuracy(tmp_path: Path) -> None:
    """A link can lose every frame; the other values of the run remain, and no tick had an output."""
    write_truth(tmp_path / "truth", _FRAMES)
    write_streaming_run(tmp_path / "vehicle-1", StreamingRunPlan(unanswered=_FRAMES))
    columns = compare_masks(tmp_path, tmp_path / "truth", warm_up=0)
    counts = {"masks_compared": 0, "ticks_scored": 20, "ticks_without_output": 20}
    assert columns == counts | {"at_tick_mean_iou_all_ticks": 0.0}


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
    images: Pixels = np.zeros((4, 6), np.uint8)
    with BagWriter(tmp_path / "truth") as writer:
        for topic in ("image_raw", suffix):
            writer.write_image(f"/sensors/camera/left/{topic}", images, "mono8", 1, 1, "camera")
    axes = {"model": model, "scenario": "different_images"}
    file = plan_file(tmp_path, bag=str(tmp_path / "truth"), accuracy=True, axes=axes)
    arguments = ["run", str(file), "--models", str(MODELS), "--out", str(tmp_path / "study")]
    with pytest.raises(SkylaneError) as caught:
        CliRunner().invoke(study, arguments, catch_exceptions=False)
    assert expected in str(caught.value)
    assert not (tmp_path / "study").exists()
