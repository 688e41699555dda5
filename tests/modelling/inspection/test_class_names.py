"""Label sets on `skylane model inspect`: suggested by the number of classes, applied by name, refused if they do not fit."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from modelling.model_cli import model as model_command
from shared.imaging.labels import LabelsError, labels_from

onnx: Any = import_module("onnx")


def _model(folder: Path, classes: int) -> Path:
    """Writes a network whose planar scores are larger than its number of classes in both directions."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.ones((classes, 3, 1, 1), np.float32), "w")
    ends = [
        [helper.make_tensor_value_info(name, float32, [1, channels, 256, 320])]
        for name, channels in (("x", 3), ("y", classes))
    ]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", *ends, [weights])
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def _inspect(path: Path, *options: str) -> Any:
    return CliRunner().invoke(model_command, ["inspect", str(path), *options])


@pytest.mark.parametrize(
    ("classes", "fitting"),
    [(19, ["cityscapes"]), (12, ["camvid-12", "davis", "street12"]), (7, [])],
    ids=str,
)
def test_sets_with_as_many_classes_are_suggested_and_not_applied(
    tmp_path: Path, classes: int, fitting: list[str]
) -> None:
    """The order of the classes may differ, so the user decides."""
    shown = _inspect(_model(tmp_path, classes)).output
    assert [line.split("--labels ")[1].split()[0] for line in shown.splitlines() if "has as many" in line] == fitting
    assert "class-0" in shown


def test_the_names_and_colours_of_a_set_are_written(tmp_path: Path) -> None:
    """The manifest does not depend on the set later."""
    done = _inspect(_model(tmp_path, 19), "--labels", "cityscapes", "--write", str(tmp_path / "models" / "net"))
    assert done.exit_code == 0, done.output
    written = yaml.safe_load((tmp_path / "models" / "net" / "model.yaml").read_text())["labels"]
    expected = labels_from("cityscapes")
    assert [each["name"] for each in written] == list(expected.names)
    assert [tuple(each["colour"]) for each in written] == list(expected.colours)


@pytest.mark.parametrize("name", ["voc", "camvid", "coco-91"])
def test_a_set_of_another_size_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    """Fewer or more names than classes would name some of them wrongly."""
    done = _inspect(_model(tmp_path, 19), "--labels", name, "--write", str(tmp_path / "models" / "net"))
    assert isinstance(done.exception, LabelsError)
    count = len(labels_from(name).names)
    assert f"the labels name {count} classes, and the model has 19: give --labels with 19, such as cityscapes" in str(
        done.exception
    )
    assert not (tmp_path / "models").exists()
