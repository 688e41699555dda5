"""Writes an ONNX model as third-party tools do: planar float input and scores as output."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shared.files import tree_sha256
from tests.support.tiny_models import CLASSES, HEIGHT, WIDTH

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

WEIGHTS = np.random.default_rng(2).normal(size=(CLASSES, 3, 1, 1)).astype(np.float32)


def model(*, weights_in: str | None = None) -> Any:
    """Returns a 1×1 convolution, float32 N×3×16×24 to N×5×16×24; `weights_in` names a file for external weights."""
    weights = onnx.numpy_helper.from_array(WEIGHTS, "weights")
    if weights_in is not None:
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", weights_in), ("offset", "0"), ("length", str(WEIGHTS.nbytes))):
            weights.external_data.add(key=key, value=value)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Conv", ["picture", "weights"], ["scores"])],
        "network",
        [helper.make_tensor_value_info("picture", float32, ["batch", 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("scores", float32, ["batch", CLASSES, HEIGHT, WIDTH])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def add(root: Path, content: Any, file: str = "model.onnx") -> Path:
    """Writes a ModelProto as model `foreign` into a repository, to a file that may be in a folder; returns its folder."""
    folder = root / "foreign"
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content.SerializeToString())
    return write_manifest(folder, file.partition("/")[0])


def write_manifest(folder: Path, file: str) -> Path:
    """Writes the manifest of a model's folder."""
    manifest = {
        "format": "onnx",
        "file": file,
        "sha256": tree_sha256(folder / file),
        "input": {"tensor": "picture", "dtype": "float32", "height": HEIGHT, "width": WIDTH, "mean": [100, 120, 140]},
        "output": {"tensor": "scores", "kind": "scores"},
        "labels": [{"name": f"class-{number}", "colour": [number, 0, 0]} for number in range(CLASSES)],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return folder


def masks(images: Any) -> Any:
    """Returns the model's masks, computed with NumPy."""
    values = images.astype(np.float32) - np.array([100, 120, 140], np.float32)
    return np.argmax(values @ WEIGHTS[:, :, 0, 0].T, axis=-1)
