"""What the codecs of frames cost a model: with true labels, without any, and on what cannot be measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.cli import bench
from bench.codecs import chart, cheapest_without_loss, title
from rosbag_tools.drive.recording import DrivePlan, record
from rosbag_tools.extraction import extract
from tests.pipeline.conftest import models

__all__ = ["models"]


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic drive of small images with true labels."""
    path = tmp_path_factory.mktemp("codecs") / "drive"
    record(path, DrivePlan(seed=3, frames=6, width=256, height=160))
    return path


def run(models: Path, *flags: object) -> Any:
    """Runs the bench on the model `tiny`; returns its JSON, or its error message."""
    file = models.parent / "codecs.json"
    file.unlink(missing_ok=True)
    arguments = ["codecs", "--models", models, "--model", "tiny", "--json", file, *flags]
    done = CliRunner().invoke(bench, [*map(str, arguments)])
    return json.loads(file.read_text()) if file.exists() else f"{done.output}{done.exception}"


def test_lossless_codecs_cost_nothing_and_a_low_quality_does(models: Path, drive: Path) -> None:
    """Each codec that has a quality is measured once per quality, every other one once, raw frames first."""
    result = run(models, "--drive", drive, "--quality", 95, "--quality", 5)
    found = {title(each): each for each in result["codecs"]}
    assert list(found) == ["raw", "jpeg 95", "jpeg 5", "png", "lz4", "zstd"]
    assert found["raw"]["bytes"] == result["input"][0] * result["input"][1] * 3
    for name in ("raw", "png", "lz4", "zstd"):
        assert found[name]["is_lossless"]
        assert (found[name]["agreement"]["value"], found[name]["change"]["value"]) == (1.0, 0.0)
        assert found[name]["mean_iou"] == found["raw"]["mean_iou"]
    assert found["jpeg 5"]["agreement"]["value"] < found["jpeg 95"]["agreement"]["value"] < 1.0
    assert found["jpeg 5"]["bytes"] < found["jpeg 95"]["bytes"] < found["png"]["bytes"]
    change = found["jpeg 5"]["mean_iou"]["value"] - found["raw"]["mean_iou"]["value"]
    assert found["jpeg 5"]["change"]["value"] == pytest.approx(change, abs=1e-4)
    assert result["frames"] == 6


def test_without_true_labels_the_agreement_with_raw_frames_is_all(models: Path, drive: Path, tmp_path: Path) -> None:
    """A folder of images has no labels: the change is that of the agreement."""
    extract(drive, tmp_path / "images")
    result = run(models, "--drive", tmp_path / "images", "--quality", 20, "--codec", "jpeg", "--frames", 2)
    raw, jpeg = result["codecs"]
    assert result["classes"] is raw["mean_iou"] is None
    assert jpeg["change"]["value"] == pytest.approx(jpeg["agreement"]["value"] - 1, abs=1e-4)
    assert result["frames"] == 2


@pytest.mark.parametrize("given", ["mixed", "map", "absent", "empty", "quality", "model", "twice"])
def test_what_cannot_be_measured_is_refused(models: Path, drive: Path, tmp_path: Path, given: str) -> None:
    """One sentence, and no JSON file."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "map.yaml").write_text("road: road")
    extract(drive, tmp_path / "images")
    flags, problem = {
        "mixed": (("--drive", drive, "--drive", tmp_path / "images"), "only some drives have true labels"),
        "map": (("--drive", tmp_path / "images", "--map", tmp_path / "map.yaml"), "--map: there are no true labels"),
        "absent": (("--drive", tmp_path / "nowhere"), "does not exist"),
        "empty": (("--drive", tmp_path / "empty"), "holds neither a bag nor images"),
        "quality": (("--drive", drive, "--quality", 0), "0 is too small"),
        "model": (("--drive", drive, "--model", "tyni"), "tyni"),
        "twice": (("--drive", drive, "--drive", drive.parent / "." / drive.name), "is given twice"),
    }[given]
    found = run(models, *flags)
    assert isinstance(found, str)
    assert problem in found


def _measured(codec: str, size: int, high: float, *, is_lossless: bool = False) -> dict[str, Any]:
    change = {"value": min(high, 0.0), "low": -0.1, "high": high}
    return {"codec": codec, "quality": None, "bytes": size, "change": change, "is_lossless": is_lossless}


def test_the_cheapest_codec_is_above_the_first_shown_loss() -> None:
    """A lower quality whose interval happens to reach 0 is not better than a higher one that loses."""
    found = [_measured("a", 10, 0.01), _measured("b", 20, -0.01), _measured("c", 30, 0.0), _measured("d", 40, 0.02)]
    assert cheapest_without_loss(found)["codec"] == "c"


def test_the_chart_shows_lossy_codecs_and_the_smallest_lossless_one() -> None:
    """Each result is a line from small to large frames."""
    found = [
        _measured("raw", 90, 0.0, is_lossless=True),
        _measured("png", 50, 0.0, is_lossless=True),
        _measured("jpeg", 9, -0.01),
    ]
    (trace,) = chart("codecs", {"network": {"codecs": found}}).traces
    assert (trace["x"], trace["y"]) == ([0.009, 0.05], [-1.0, 0.0])
