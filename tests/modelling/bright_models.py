"""Models that tell bright pixels from dark ones, and the command `skylane model` on them."""

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from cloud.engines.tensorflow.runtime import tf
from modelling.model_cli import model
from shared.files import tree_sha256

HEIGHT, WIDTH = 38, 60


def run(*arguments: object) -> Result:
    """Runs `skylane model`."""
    return CliRunner().invoke(model, [str(argument) for argument in arguments], catch_exceptions=False)


def add(root: Path, name: str, threshold: float = 100.0, *, noisy: bool = False, **changes: Any) -> str:
    """Writes a model that predicts class 1 for pixels brighter than `threshold`; returns its file's hash."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (None, HEIGHT, WIDTH, 3), "input")
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
        "input": {"tensor": "input:0", "height": HEIGHT, "width": WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": "dark", "colour": [0, 0, 0]}, {"name": "light", "colour": [0, 255, 0]}],
        **changes,
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return str(manifest["sha256"])
