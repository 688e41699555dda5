import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from cloud.engines.tensorflow.runtime import tf
from modelling.model_cli import model
from rosbag_tools.drive.recording import DrivePlan, record
from shared.errors import SkylaneError
from shared.files import tree_sha256

_HEIGHT, _WIDTH = 38, 60


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(model, [str(argument) for argument in arguments], catch_exceptions=False)


def _add(root: Path, name: str, threshold: float = 100.0, *, noisy: bool = False, **changes: Any) -> str:
    """Writes a model that predicts class 1 for pixels brighter than `threshold`; returns its file's hash."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (None, _HEIGHT, _WIDTH, 3), "input")
        brightness = tf.cast(images[..., 0], tf.float32)
        brightness += 100 * tf.random.uniform(tf.shape(brightness)) if noisy else 0.0
        tf.cast(brightness > threshold, tf.uint8, name="prediction")
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    manifest = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": _HEIGHT, "width": _WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": "dark", "colour": [0, 0, 0]}, {"name": "light", "colour": [0, 255, 0]}],
        **changes,
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return str(manifest["sha256"])


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive with true labels."""
    path = tmp_path_factory.mktemp("bags") / "drive"
    record(path, DrivePlan(seed=1, frames=3, width=120, height=76))
    return path


def test_bench_compares_speed_and_labels_with_the_reference(tmp_path: Path, drive: Path) -> None:
    """A converted model with other labels has a lower agreement."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "brighter", 140.0, converted_from={"model": "bright", "sha256": source})
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 3, "--rounds", 2)
    result = json.loads(_run("bench", *arguments, "--engine", "tensorflow", "--batch", "1,2", "--json").stdout)
    assert result["reference"] == "tensorflow fp32"
    first = result["rows"][0]
    assert (first["what"], first["threads"], first["batch"]) == ("tensorflow fp32", 0, 1)
    assert (first["ratio"], first["agreement"]) == (1.0, 1.0)
    rows = {(row["what"], row["batch"]): row for row in result["rows"]}
    assert ("tensorflow fp32", 2) in rows
    assert rows["tensorflow fp32 of brighter", 1]["agreement"] < 1.0
    assert all(row["runs"] == 2 for row in result["rows"])
    table = _run("bench", *arguments, "--engine", "tensorflow", "--engine", "torchscript").stdout
    assert "brighter" in table
    assert "tensorflow 2." in table
    assert "not run: torchscript: reads no file of bright: see `skylane model convert`" in table


def test_bench_lists_engines_that_are_not_installed(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output has the reason and the pip command."""
    for name in [name for name in sys.modules if name.startswith("cloud.engines.openvino.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    _add(tmp_path, "bright")
    ran = _run("bench", "bright", "--models", tmp_path, "--bag", drive, "--frames", 1, "--rounds", 1)
    assert "not run: openvino fp32" in ran.stdout
    assert "pip install 'skylane[openvino]'" in ran.stdout


@pytest.mark.parametrize("option", ["--batch=0", "--batch=x", "--threads=1,,2", "--threads=-1"])
def test_invalid_numbers_are_usage_errors(tmp_path: Path, option: str) -> None:
    """The exit code is 2."""
    assert _run("bench", "bright", "--models", tmp_path, option).exit_code == 2


def test_an_unknown_model_is_refused_before_a_drive_is_rendered(tmp_path: Path) -> None:
    """Rendering takes seconds."""
    _add(tmp_path, "bright")
    with pytest.raises(SkylaneError, match="no model 'brihgt': did you mean bright"):
        _run("bench", "brihgt", "--models", tmp_path)


def test_verify_passes_a_correct_repository(tmp_path: Path) -> None:
    """A converted model is compared with its source."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "copy", converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    ran = _run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 0
    rows = {row["name"]: row for row in json.loads(ran.stdout)}
    assert rows["bright"]["checks"] == ["manifest", "hash", "tensors", "steady"]
    assert (rows["copy"]["agreement"], rows["copy"]["checks"][-1]) == (1.0, "agreement")


def test_verify_reports_the_failure_of_each_model(tmp_path: Path) -> None:
    """One failure does not stop the verification of the other models; the exit code is 1."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "worse", 160.0, converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    _add(tmp_path, "orphan", converted_from={"model": "gone", "sha256": "1" * 64})
    _add(tmp_path, "noisy", noisy=True)
    _add(tmp_path, "changed")
    (tmp_path / "changed" / "model.pb").write_bytes(b"another")
    _add(tmp_path, "nameless", labels=[{"name": "dark", "colour": [0, 0, 0]}])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.yaml").write_text("fromat: frozen_graph")
    _add(tmp_path, "wrong", input={"tensor": "inptu:0", "height": _HEIGHT, "width": _WIDTH})
    ran = _run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 1
    failures = {row["name"]: row["failure"] for row in json.loads(ran.stdout)}
    assert failures["bright"] is None
    assert "its floor is 99.9 %" in failures["worse"]
    assert "the repository lacks the model it was converted from (gone, 111111111111…)" in failures["orphan"]
    assert "dropout or noise is active" in failures["noisy"]
    assert "it was changed or is incomplete" in failures["changed"]
    assert "no input tensor 'inptu:0': did you mean input" in failures["wrong"]
    assert (
        "class 1, but names only 1" in failures["nameless"]
    )  # The graph has the arg max: only a run reveals the class.
    assert "did you mean format" in failures["broken"]
    assert _run("verify", "bright", "--models", tmp_path).exit_code == 0
    assert "FAILED" in _run("verify", "worse", "--models", tmp_path).stdout


def test_bench_evaluates_a_detector_with_the_drives_boxes(drive: Path) -> None:
    """The result has an accuracy, or the reason why there is none."""
    arguments = ("road-objects", "--models", "models", "--bag", drive, "--frames", 2, "--rounds", 1)
    result = json.loads(_run("bench", *arguments, "--engine", "tensorflow", "--json").stdout)
    first = result["rows"][0]
    assert first["accuracy"] is not None or "contain nothing that" in result["unjudged"]
    assert "off by" in _run("bench", *arguments, "--engine", "tensorflow").stdout


def test_labels_are_compared_without_batching(tmp_path: Path, drive: Path) -> None:
    """The first row is the reference with a batch size of 1."""
    _add(tmp_path, "bright")
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 2, "--rounds", 1, "--engine", "tensorflow")
    result = json.loads(_run("bench", *arguments, "--batch", 3, "--json").stdout)
    assert [row["batch"] for row in result["rows"]] == [1, *[3] * (len(result["rows"]) - 1)]
    assert all(row["agreement"] == 1.0 for row in result["rows"] if row["precision"] == "fp32")
    assert np.isfinite([row["ratio"] for row in result["rows"]]).all()
