"""Tiny ONNX models for tests of vehicles with a model of their own."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rosbag_tools.drive.scene import CLASSES
from tests.support.model_folder import write_model

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

LABELS = ("dark", "bright")


def write_brightness(
    root: Path, name: str, height: int, width: int, *, steepness: float, labels: tuple[str, ...] = LABELS
) -> None:
    """Writes a classification; its score of "bright" is sigmoid(steepness · (mean - 0.5)) with the mean in 0..1."""
    slope = np.array([[-steepness / 2, steepness / 2]], np.float32)
    constants = {"axes": np.array([1, 2, 3]), "slope": slope, "offset": (-slope[0] / 2).astype(np.float32)}
    node = onnx.helper.make_node
    nodes = [
        node("ReduceMean", ["image", "axes"], ["kept"], keepdims=1),
        node("Flatten", ["kept"], ["mean"]),
        node("MatMul", ["mean", "slope"], ["scaled"]),
        node("Add", ["scaled", "offset"], ["logits"]),
    ]
    model = _model(nodes, constants, [height, width, 3], {"logits": [2]})
    keys = {"task": "classification", "output": {"tensor": "logits", "kind": "logits"}}
    _write(root / name, model, height, width, {**keys, "labels": _labels(labels)})


def write_segmentation(root: Path, name: str, height: int, width: int, classes: int) -> None:
    """Writes a segmentation whose class of a pixel is the nearest of `classes` grey levels, which are evenly spaced.

    Twelve classes are those of the synthetic drive. It is sure of pixels near a level, and unsure of those between two levels.
    """
    levels = np.linspace(0, 1, classes, dtype=np.float32)
    weights = np.repeat(2 * levels[:, np.newaxis] / 3, 3, axis=1)[:, :, np.newaxis, np.newaxis]
    nodes = [
        onnx.helper.make_node("Conv", ["image", "weights", "offset"], ["scores"]),
        onnx.helper.make_node("Transpose", ["scores"], ["logits"], perm=[0, 2, 3, 1]),
    ]
    sharpness = 4.0 * (classes - 1) ** 2
    constants = {"weights": (sharpness * weights).astype(np.float32), "offset": -sharpness * levels**2}
    outputs = {"scores": [classes, height, width], "logits": [height, width, classes]}
    keys = {
        "output": {"tensor": "scores", "kind": "scores"},
        "confidence": "logits",
        "labels": _labels(CLASSES if classes == len(CLASSES) else [f"class-{number}" for number in range(classes)]),
    }
    _write(root / name, _model(nodes, constants, [3, height, width], outputs), height, width, keys)


def _model(nodes: list[Any], constants: dict[str, Any], image: list[int], outputs: dict[str, list[int]]) -> Any:
    """Returns a ModelProto with the input `image`; shapes without the batch."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("image", float32, ["batch", *image])]
    infos = [helper.make_tensor_value_info(name, float32, ["batch", *shape]) for name, shape in outputs.items()]
    tensors = [onnx.numpy_helper.from_array(values, key) for key, values in constants.items()]
    graph = helper.make_graph(nodes, "network", inputs, infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _labels(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": name, "colour": [number, 0, 0]} for number, name in enumerate(names)]


def _write(folder: Path, model: Any, height: int, width: int, keys: dict[str, Any]) -> None:
    image = {"tensor": "image", "dtype": "float32", "height": height, "width": width, "scale": 1 / 255}
    given = {"format": "onnx", "input": image, "warm_up": {"runs": 1}, **keys}
    write_model(folder, "model.onnx", model.SerializeToString(), **given)
