"""Drives of bags with labels, in place of synthetic ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.freshness.freshness_bench import freshness
from rosbag_tools.writer import BagWriter

NAMES = ("road", "car")
HEIGHT, WIDTH = 48, 64
PERIOD_NS = 100_000_000


def moving_scene(step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A bright block that moves by two pixels a frame over textured ground, and its labels."""
    ground = np.random.default_rng(1).integers(20, 90, (HEIGHT, WIDTH, 3), np.uint8)
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    ground[16:32, 2 * step : 2 * step + 16] += 120
    labels[16:32, 2 * step : 2 * step + 16] = 1
    labels[0] = 255
    return ground, labels


def write_bag(
    path: Path, stamps_ns: Sequence[int], *, labelled: Sequence[int] | None = None, names: Sequence[str] = NAMES
) -> Path:
    """Writes the scene at some times; `labelled`: the frames with labels, by default all."""
    with BagWriter(path) as writer:
        for step, stamp_ns in enumerate(stamps_ns):
            image, labels = moving_scene(step)
            writer.write_image("/camera/image_raw", image, "rgb8", stamp_ns, stamp_ns, "camera")
            if labelled is None or step in labelled:
                writer.write_image("/camera/labels", labels, "mono8", stamp_ns, stamp_ns, "camera")
        if names:
            writer.write_label_info(
                "/camera/label_info", names, stamp_ns=stamps_ns[0], received_ns=stamps_ns[-1], frame_id="camera"
            )
    return path


def times(count: int) -> list[int]:
    """Times of a steady camera."""
    return [10**18 + step * PERIOD_NS for step in range(count)]


def run(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Runs the benchmark and returns its JSON."""
    path = tmp_path / "result.json"
    found = CliRunner().invoke(freshness, [*options, "--json", str(path)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_true_labels_as_results_isolate_the_presenter(tmp_path: Path) -> None:
    """The ceiling is perfect but for pixels without a label; a held mask lags behind the block."""
    result = run(tmp_path, "--drive", str(write_bag(tmp_path / "bag", times(16))), "--remote", "truth")
    assert [case["age_ms"] for case in result["ages"]] == [100, 200, 300, 500]
    at_200 = result["ages"][1]
    values = {name: each["mean_iou"]["value"] for name, each in at_200["candidates"].items()}
    assert values.keys() == {"ceiling", "hold", "warp", "warp-fine"}
    assert values["ceiling"] == 1.0
    # Held for two frames, the block is four pixels behind: 12 of 16 columns are right.
    assert at_200["candidates"]["hold"]["iou_by_class"]["car"] == pytest.approx(12 / 20, abs=1e-4)
    assert at_200["ticks"] == 14
    # At the tick, a warped mask counts one frame late, and the first one of the drive is ready at the second tick.
    strict = at_200["at_tick"]
    assert strict["ticks"] == 13
    assert strict["candidates"]["hold"]["iou_by_class"]["car"] == pytest.approx(12 / 20, abs=1e-4)
    assert strict["candidates"]["warp"]["mean_iou"]["value"] < at_200["candidates"]["warp"]["mean_iou"]["value"]
    assert result["real_drives"][0] | {"bag": ""} == {
        "bag": "",
        "frames": 16,
        "labelled": 16,
        "unreadable": 0,
        "rate_hz": 10.0,
        "model_input": f"{WIDTH}×{HEIGHT}",
    }


def test_no_result_comes_from_before_a_pause(tmp_path: Path) -> None:
    """A bag of several sequences is no continuous drive."""
    stamps = [*times(8), *(each + 20 * 10**9 for each in times(8))]
    result = run(tmp_path, "--drive", str(write_bag(tmp_path / "bag", stamps)), "--remote", "truth")
    assert [case["ticks"] for case in result["ages"]] == [14, 12, 10, 6]
    assert len(result["ages"][0]["candidates"]["hold"]["by_drive"]) == 2


def test_a_lost_frame_does_not_end_a_drive(tmp_path: Path) -> None:
    """Otherwise every lost frame would count as one more independent drive in the intervals."""
    stamps = [each for number, each in enumerate(times(17)) if number != 8]
    result = run(tmp_path, "--drive", str(write_bag(tmp_path / "bag", stamps)), "--remote", "truth")
    assert len(result["ages"][0]["candidates"]["hold"]["by_drive"]) == 1
    assert result["ages"][0]["ticks"] == 14, "the tick after the lost frame has no result of one frame before it"


def test_frames_without_labels_are_seen_but_not_scored(tmp_path: Path, repository: Path) -> None:
    """Some data sets label one frame in thirty."""
    bag = write_bag(tmp_path / "bag", times(12), labelled=[9, 11], names=())
    models = ("--models", str(repository), "--remote", "remote", "--local", "local")
    result = run(tmp_path, "--drive", str(bag), *models, "--presenter", "warp")
    assert {case["ticks"] for case in result["ages"]} == {2}
    assert result["ages"][0]["candidates"].keys() == {"ceiling", "local only", "hold", "warp"}
    assert result["real_drives"][0]["labelled"] == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--remote", "truth", "--local", "road-tiny"], "--local compares two models"),
        (["--remote", "truth", "--presenter", "fuse"], "the presenter fuse and --local-side need a local model"),
        (["--remote", "truth", "--live"], "--live plays the synthetic drives only"),
        (["--remote", "truth", "--local-side", "64"], "the presenter fuse and --local-side need a local model"),
        (["--remote", "truth", "--map", __file__], "--remote truth has the classes of the truth: leave --map out"),
        (["--remote", "truth", "--presenter", "warp", "--presenter", "fuse"], "give one with --local"),
        (["--remote", "truth", "--frames", "1"], "1 is too small: give a whole number from 18"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], problem: str) -> None:
    """The message names the option that is missing."""
    bag = write_bag(tmp_path / "bag", times(4))
    found = CliRunner().invoke(freshness, ["--drive", str(bag), *options])
    assert found.exit_code
    assert problem in str(found.exception) + found.output


@pytest.mark.parametrize("options", [["--remote", "truth"], ["--map", "map.yaml"], ["--local-side", "64"]])
def test_options_for_drives_of_bags_need_a_bag(
    tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synthetic drive has no other classes than its models."""
    monkeypatch.chdir(tmp_path)
    Path("map.yaml").write_text("car: car")
    found = CliRunner().invoke(freshness, options)
    assert "give them with --drive" in str(found.exception)


def test_a_drive_counts_once(tmp_path: Path) -> None:
    """Twice, its ticks would narrow the intervals."""
    bag = write_bag(tmp_path / "bag", times(12))
    found = CliRunner().invoke(freshness, ["--drive", str(bag), "--drive", str(bag), "--remote", "truth"])
    assert "is given twice" in str(found.exception)


def test_drives_of_equal_names_are_two_drives(tmp_path: Path) -> None:
    """Intervals are over drives."""
    bags = [write_bag(tmp_path / folder / "bag", times(12)) for folder in "ab"]
    result = run(tmp_path, "--drive", str(bags[0]), "--drive", str(bags[1]), "--remote", "truth")
    assert len(result["ages"][0]["candidates"]["hold"]["by_drive"]) == 2


def test_one_presenter_alone(tmp_path: Path) -> None:
    """It is compared with holding, without a local model."""
    bag = write_bag(tmp_path / "bag", times(16))
    result = run(tmp_path, "--drive", str(bag), "--remote", "truth", "--presenter", "warp")
    assert result["ages"][0]["candidates"].keys() == {"ceiling", "hold", "warp"}


def test_labels_without_names_cannot_be_the_remote_result(tmp_path: Path) -> None:
    """Their number of classes is not known."""
    bag = write_bag(tmp_path / "bag", times(12), names=())
    found = CliRunner().invoke(freshness, ["--drive", str(bag), "--remote", "truth"])
    assert "does not name the classes of its labels" in str(found.exception)


def test_a_drive_that_is_too_short_for_late_results_is_refused(tmp_path: Path) -> None:
    """The message says how many frames a result is late."""
    bag = write_bag(tmp_path / "bag", times(4))
    found = CliRunner().invoke(freshness, ["--drive", str(bag), "--remote", "truth"])
    assert "no frame with labels has a result 5 frames before it" in str(found.exception)
