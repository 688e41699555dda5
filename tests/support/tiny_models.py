"""Writes tiny Keras models of every task, from which the tests make all other formats."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cloud.engines.tensorflow.runtime import tf
from shared.files import tree_sha256

keras: Any = import_module("keras")
assert tf is not None  # Imported before Keras, because `runtime` silences TensorFlow's log output.

HEIGHT, WIDTH, CLASSES, BOXES = 16, 24, 5, 6
TASKS = ("segmentation", "classification", "detection", "tensors")

INPUT = {
    "tensor": "images",
    "dtype": "float32",
    "height": HEIGHT,
    "width": WIDTH,
    "scale": 1 / 255,
    "mean": [0.5, 0.25, 0.75],
    "std": [0.25, 0.5, 2.0],
}
_OUTPUTS: dict[str, dict[str, Any]] = {
    "segmentation": {"output": {"tensor": "scores", "kind": "scores"}},
    "classification": {"output": {"tensor": "logits", "kind": "logits"}},
    "detection": {
        "outputs": {"boxes": {"tensor": "places", "kind": "boxes"}, "scores": {"tensor": "logits", "kind": "logits"}},
        "box_format": {"order": "cxcywh", "normalised": True},
    },
    "tensors": {
        "outputs": {"features": {"tensor": "map", "kind": "tensor"}, "means": {"tensor": "means", "kind": "tensor"}}
    },
}


def write(root: Path, task: str) -> str:
    """Writes a model's folder into a repository; returns the model's name, which is that of its task.

    The model of raw tensors has a square root whose result is NaN for a black image.
    """
    folder = root / task
    folder.mkdir()
    path = folder / "model.keras"
    _network(task).save(path)
    labels = [{"name": f"class-{number}", "colour": [number, 0, 0]} for number in range(CLASSES)]
    manifest = {
        "task": task,
        "format": "keras",
        "file": path.name,
        "sha256": tree_sha256(path),
        "input": INPUT,
        "batching": {"max_size": 3},
        **_OUTPUTS[task],
        **({} if task == "tensors" else {"labels": labels}),
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return task


def _network(task: str) -> Any:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    images = keras.Input((HEIGHT, WIDTH, 3), name="images")
    features = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(images)
    features = layers.DepthwiseConv2D(3, padding="same")(features)
    features = features * keras.ops.relu6(features + 3.0) / 6.0
    if task == "tensors":
        features = keras.ops.sqrt(keras.ops.mean(images, axis=(1, 2, 3), keepdims=True)) * features
    means = keras.ops.mean(features, axis=(1, 2))
    match task:
        case "segmentation":
            scores = layers.Conv2D(CLASSES, 1)(features)
            outputs = [_named(keras.ops.image.resize(scores, (HEIGHT, WIDTH), interpolation="bilinear"), "scores")]
        case "classification":
            outputs = [_named(layers.Dense(CLASSES)(means), "logits")]
        case "detection":
            places = keras.ops.sigmoid(layers.Dense(BOXES * 4)(means))
            logits = layers.Dense(BOXES * CLASSES)(means)
            outputs = [
                _named(keras.ops.reshape(places, (-1, BOXES, 4)), "places"),
                _named(keras.ops.reshape(logits, (-1, BOXES, CLASSES)), "logits"),
            ]
        case _:
            outputs = [_named(features, "map"), _named(means, "means")]
    return keras.Model(images, outputs)


def _named(tensor: Any, name: str) -> Any:
    return keras.layers.Identity(name=name)(tensor)


def noise(count: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Returns random images, uint8 count×16×24×3."""
    return np.random.default_rng(5).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)
