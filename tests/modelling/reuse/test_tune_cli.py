"""`skylane model tune-gate` and `judge-gate` with models of the repository."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from modelling.model_cli import model
from rosbag_tools.drive.scene import PRESENCE
from shared.errors import SkylaneError
from shared.files import tree_sha256
from shared.imaging.opencv import cv2
from shared.reuse.tuning import read_tuning
from tests.modelling.reuse.parts import EMPTY, HEIGHT, VEHICLE, WIDTH, write_drive

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

LEVELS = [EMPTY] * 4 + [VEHICLE] * 4 + [EMPTY] * 2


def _add_model(root: Path, name: str, slope: float) -> None:
    """Writes an ONNX classifier, whose odds of a vehicle rise by `slope` per grey level above 100."""
    folder = root / name
    folder.mkdir(parents=True)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.array([[0, slope / 3]] * 3, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["picture", "axes"], ["means"], keepdims=0),
            helper.make_node("Gemm", ["means", "weights", "offset"], ["logits"]),
        ],
        "network",
        [helper.make_tensor_value_info("picture", float32, ["batch", 3, HEIGHT // 2, WIDTH // 2])],
        [helper.make_tensor_value_info("logits", float32, ["batch", 2])],
        [
            onnx.numpy_helper.from_array(np.array([2, 3], np.int64), "axes"),
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(np.array([0, -100 * slope], np.float32), "offset"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    manifest = {
        "task": "classification",
        "format": "onnx",
        "file": "model.onnx",
        "sha256": tree_sha256(folder / "model.onnx"),
        "input": {"tensor": "picture", "dtype": "float32", "height": HEIGHT // 2, "width": WIDTH // 2},
        "output": {"tensor": "logits", "kind": "logits"},
        "labels": [{"name": each, "colour": [index, 0, 0]} for index, each in enumerate(PRESENCE)],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a reference model and a less certain local model."""
    root = tmp_path_factory.mktemp("models")
    _add_model(root, "reference", 0.2)
    _add_model(root, "small", 0.05)
    return root


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two drives."""
    folder = tmp_path_factory.mktemp("drives")
    return [write_drive(folder / f"drive-{index}", LEVELS, light=index) for index in range(2)]


def _tune(root: Path, *arguments: Any) -> Result:
    return _run("tune-gate", *arguments, "--models", root)


def _run(*words: Any) -> Result:
    return CliRunner().invoke(model, [str(each) for each in words])


def test_the_thresholds_are_written_to_a_file(root: Path, bags: list[Path], tmp_path: Path) -> None:
    """It names both models by their hash, and a table shows what was tried."""
    out = tmp_path / "tuning" / "reference.yaml"
    ended = _tune(root, *bags, "--model", "reference", "--local-model", "small", "--gate", "both", "--out", out)
    assert ended.exit_code == 0, ended.output
    tuning = read_tuning(out)
    assert (tuning.reference.name, tuning.reference.sha256) == ("reference", tree_sha256(root / "reference/model.onnx"))
    assert tuning.local is not None
    assert (tuning.local.name, tuning.local.sha256) == ("small", tree_sha256(root / "small/model.onnx"))
    assert tuning.local.temperature < 1  # The small model is right more often than it believes.
    assert tuning.measured is not None
    assert tuning.measured.calibration_error is not None
    assert tuning.measured.calibration_error_uncalibrated is not None
    assert tuning.measured.calibration_error < tuning.measured.calibration_error_uncalibrated
    assert tuning.measured.loss <= 1.0
    assert tuning.measured.sent < 0.5
    assert tuning.gate is not None
    assert tuning.gate_settings("pixels").reuse_frames == tuning.gate_settings("mse").reuse_frames == 10
    assert "sent" in ended.output
    assert "expected calibration error" in ended.output
    assert "with 95 % confidence" in " ".join(ended.output.split())


def test_a_gate_is_tuned_without_a_local_model(root: Path, bags: list[Path], tmp_path: Path) -> None:
    """The file then has no section of it."""
    out = tmp_path / "gate.yaml"
    limits = ("--reuse-frames", 3, "--reuse-ms", 700, "--frames", 6, "--loss", 0, "--delay-ms", 0)
    ended = _tune(root, *bags, "--model", "reference", *limits, "--out", out)
    assert ended.exit_code == 0, ended.output
    tuning = read_tuning(out)
    assert tuning.local is None
    assert tuning.gate_settings("mse").reuse_ms == 700
    assert tuning.measured is not None
    assert (tuning.measured.frames, tuning.measured.loss) == (12, 0)
    assert tuning.measured.sent == pytest.approx(1 / 3, abs=1e-3)


def test_tuned_thresholds_are_judged_on_other_drives(root: Path, bags: list[Path], tmp_path: Path) -> None:
    """The result is a table or JSON, by use and drive; a file for another version of the model is refused."""
    out = tmp_path / "tuning.yaml"
    ended = _tune(root, *bags, "--model", "reference", "--local-model", "small", "--out", out)
    assert ended.exit_code == 0, ended.output
    other = write_drive(tmp_path / "other", [EMPTY] * 6 + [VEHICLE] * 6)
    late = json.loads(_run("judge-gate", other, "--tuning", out, "--models", root, "--json").stdout)
    assert late["delay_ms"] == 200
    assert late["gate"]["sent"]["mean"] == pytest.approx(4 / 12, abs=1e-4)  # Two answers are on their way each time.
    judged = _run("judge-gate", other, "--tuning", out, "--models", root, "--json", "--delay-ms", 0)
    assert judged.exit_code == 0, judged.output
    result = json.loads(judged.stdout)
    assert (result["compared_with"], result["note"]) == ("labels", "")
    assert result["frames"] == 12
    assert result["both"]["drives"]["other"]["loss"] == 0
    assert result["gate"]["sent"]["mean"] == pytest.approx(2 / 12, abs=1e-4)
    shown = _run("judge-gate", other, bags[0], "--tuning", out, "--models", root)
    assert "95 % interval" in shown.output
    _add_model(tmp_path / "new", "reference", 0.3)
    _add_model(tmp_path / "new", "small", 0.05)
    refused = _run("judge-gate", other, "--tuning", out, "--models", tmp_path / "new")
    assert "another file of reference" in str(refused.exception)


def test_images_without_labels_are_compared_with_the_references_results(root: Path, tmp_path: Path) -> None:
    """The file, the tables and JSON say that it is agreement, never accuracy."""
    folder = tmp_path / "street"
    folder.mkdir()
    for index, level in enumerate(LEVELS):
        image = np.full((HEIGHT, WIDTH, 3), level, np.uint8)
        assert cv2.imwrite(str(folder / f"{(1 + index) * 100_000_000:012d}.png"), image)
    out = tmp_path / "tuning.yaml"
    ended = _tune(root, folder, "--model", "reference", "--local-model", "small", "--out", out)
    assert ended.exit_code == 0, ended.output
    measured = read_tuning(out).measured
    assert measured is not None
    assert (measured.compared_with, measured.metric, measured.delay_ms) == ("results", "agreement", 200)
    assert (measured.reference_accuracy, measured.accuracy) == (None, None)
    assert measured.agreement is not None
    assert "Agreement with the results of reference, whose errors count as right" in out.read_text()
    shown = _run("judge-gate", folder, "--tuning", out, "--models", root)
    for text in (ended.output, shown.output):
        words = " ".join(text.split())
        assert "points of agreement" in words
        assert "this is no accuracy" in words
        assert "accuracy" not in words.replace("this is no accuracy", "")
    judged = json.loads(_run("judge-gate", folder, "--tuning", out, "--models", root, "--json").stdout)
    assert judged["compared_with"] == "results"
    assert judged["gate"]["agreement"]["mean"] == pytest.approx(100 - judged["gate"]["loss"]["mean"])
    assert "reference_accuracy" not in judged["gate"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"text", "is no source"),
        ("cut.mcap", b"\x89MCAP0", "cut.mcap"),
    ],
)
def test_files_that_hold_no_frames_are_refused(
    root: Path, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """With the name of the file, and without a tuning file."""
    path, out = tmp_path / name, tmp_path / "tuning.yaml"
    path.write_bytes(content)
    ended = _tune(root, path, "--model", "reference", "--out", out)
    assert isinstance(ended.exception, SkylaneError)
    assert message in str(ended.exception)
    assert not out.exists()
