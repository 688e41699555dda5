"""A repository with two classifiers of brightness, and the thresholds of a cascade of them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modelling.recipes import PRESENCE
from shared.files import tree_sha256
from shared.models.repository import Repository

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

REFERENCE, LOCAL = "bright", "bright-tiny"
_SIZES = {REFERENCE: (40, 60), LOCAL: (20, 30)}
_MIDDLE, _STEEPNESS = 110.0, 0.05  # Grey level of probability 0.5, and logits per grey level.


@pytest.fixture(scope="session")
def bright_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a repository whose models say `vehicle` for bright images; the local one has a quarter of the pixels."""
    root = tmp_path_factory.mktemp("bright-models")
    for name, (height, width) in _SIZES.items():
        folder = root / name
        folder.mkdir()
        (folder / "model.onnx").write_bytes(_brightness(height, width).SerializeToString())
        manifest = {
            "format": "onnx",
            "file": "model.onnx",
            "sha256": tree_sha256(folder / "model.onnx"),
            "task": "classification",
            "input": {"tensor": "image", "dtype": "float32", "height": height, "width": width},
            "output": {"tensor": "scores", "kind": "logits"},
            "labels": [{"name": label, "colour": [0, 0, number]} for number, label in enumerate(PRESENCE)],
        }
        (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return root


@pytest.fixture(scope="session")
def bright_tuning(bright_models: Path) -> Path:
    """Returns a tuning file for both models."""
    hashes = {name: Repository(bright_models).find(name).manifest.sha256 for name in _SIZES}
    tuning = {
        "reference": {"name": REFERENCE, "sha256": hashes[REFERENCE]},
        "gate": {"mse": 2.0, "reuse_frames": 3, "reuse_ms": 1000.0},
        "local": {"name": LOCAL, "sha256": hashes[LOCAL], "temperature": 1.0, "c_low": 0.4, "c_high": 0.6},
    }
    file = bright_models.parent / "bright-tuning.yaml"
    file.write_text(yaml.safe_dump(tuning))
    return file


def _brightness(height: int, width: int) -> Any:
    """Returns a network of the mean of an image, planar float32 N×3×height×width, to two logits."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.zeros((3, 2), np.float32)
    weights[:, 1] = _STEEPNESS / 3
    constants = {"weights": weights, "bias": np.array([0, -_STEEPNESS * _MIDDLE], np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["means"]),
            helper.make_node("Flatten", ["means"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"]),
        ],
        "brightness",
        [helper.make_tensor_value_info("image", float32, ["batch", 3, height, width])],
        [helper.make_tensor_value_info("scores", float32, ["batch", 2])],
        [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
