from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cloud.engines.tensorflow.runtime import tf
from modelling.inspection.inspection import InspectionError, inspect, write
from modelling.inspection.output_rule import Options
from modelling.model_cli import model
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels, LabelsError
from shared.models.repository import Repository
from tests.support.foreign_models import onnx_map

_WEIGHTS = np.ones((1, 1, 3, 4), np.float32)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _ids(folder: Path) -> Path:
    """Writes a graph that answers class 3 for each pixel, without showing its number of classes."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.float32, (1, 8, 12, 3), "input")
        tf.cast(tf.cast(images[..., 0] * 0 + 3.4, tf.int32), tf.uint8, name="prediction")
    path = folder / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_a_manifest_that_does_not_run_is_not_written(tmp_path: Path) -> None:
    """The manifest names two classes and the model answers a fourth: an existing folder stays as it is."""
    path, folder = _ids(tmp_path), tmp_path / "models" / "m"
    write(inspect(path), folder)
    before = _files(tmp_path)
    with pytest.raises(LabelsError, match="predicts class 3, and only 2 are named: give --labels with all"):
        inspect(path, labels=Labels(("a", "b"), ((0, 0, 0), (1, 1, 1))))
    found = inspect(path)
    found = replace(found, manifest=found.manifest.model_copy(update={"labels": found.manifest.labels[:2]}))
    with pytest.raises(SkylaneError, match="answers class 3, but names only 2"):
        write(found, folder, replace=True)
    assert _files(tmp_path) == before
    with pytest.raises(SkylaneError, match="names only"):
        write(found, tmp_path / "models" / "other")
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["m"]


def test_a_model_that_fails_on_noise_is_refused(tmp_path: Path) -> None:
    """A graph may load and fail on every image."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.float32, (1, 8, 12, 3), "input")
        rows = tf.cast(tf.reduce_sum(images) * 0 + 7, tf.int32)  # 7 of 8 rows, which only a run shows.
        tf.argmax(tf.nn.conv2d(tf.reshape(images, (1, rows, 12, 3)), _WEIGHTS, 1, "SAME"), -1, name="prediction")
    (tmp_path / "m.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(SkylaneError, match="a run on noise of 8×12 failed: the model failed: "):
        inspect(tmp_path / "m.pb")


def test_the_model_in_its_own_folder_is_described_again(tmp_path: Path) -> None:
    """Only the manifest changes, and other files of the folder stay."""
    path, folder = _ids(tmp_path), tmp_path / "models" / "m"
    write(inspect(path), folder)
    (folder / "notes.txt").write_text("kept")
    write(inspect(folder / "model.pb", options=Options(resize=Resize.STRETCH)), folder, replace=True)
    assert sorted(each.name for each in folder.iterdir()) == ["model.pb", "model.yaml", "notes.txt"]
    assert Repository(tmp_path / "models").find("m").manifest.input.resize is Resize.STRETCH


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """The message asks for another folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InspectionError, match="cannot be written"):
        write(inspect(_ids(tmp_path)), tmp_path / "file" / "m")


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(model, ["inspect", *arguments])


def test_the_command_asks_and_takes_the_answer(tmp_path: Path) -> None:
    """An undecided model exits with an error and writes nothing; the named option decides."""
    path, folder = tmp_path / "m.onnx", tmp_path / "models" / "m"
    onnx_map(path, (1, 3, 64, 64), 1, after=(("Relu", {}),))
    result = _invoke(str(path), "--write", str(folder))
    assert result.exit_code == 1
    assert "--output-kind probabilities" in str(result.exception)
    assert not folder.parent.exists()
    stated = ("--output-kind", "probabilities", "--layout", "bgr8", "--normalize", "-1..1", "--task", "segmentation")
    result = _invoke(str(path), "--write", str(folder), *stated)
    assert result.exit_code == 0
    manifest = Repository(folder.parent).find("m").manifest
    assert (manifest.input.layout, manifest.input.mean) == ("bgr8", (1.0, 1.0, 1.0))
    assert manifest.input.scale == pytest.approx(1 / 127.5)
    assert manifest.output is not None
    assert manifest.output.kind == "probabilities"
