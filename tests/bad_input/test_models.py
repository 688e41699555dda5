from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from shared.files import tree_sha256
from tests.support.tiny_model import HEIGHT, WIDTH


def _repository(root: Path, graph: bytes = b"", **changes: Any) -> Path:
    """Creates a repository with one model whose file has the content `graph`."""
    folder = root / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.pb").write_bytes(graph)
    manifest: dict[str, Any] = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": HEIGHT, "width": WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": "road", "colour": [128, 64, 128]}],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest | changes))
    return root


def test_unknown_tensor_is_reported_with_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """The error occurs before the worker connects to a broker."""
    from cloud.engines.tensorflow.runtime import tf  # noqa: PLC0415 (slow import)

    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, HEIGHT, WIDTH, 3), "inputs")
        tf.identity(images[..., 0], "prediction")
    root = _repository(tmp_path / "models", graph.as_graph_def().SerializeToString())
    line = fails("cloud", "serve", "--models", root, "--model", "tiny", "--device", "cpu")
    assert "model.pb" in line
    assert "input:0" in line
    assert "inputs" in line


def test_unknown_manifest_key_is_reported_with_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """An ignored key would be a setting without effect."""
    root = _repository(tmp_path / "models", batchin={"max_size": 4})
    line = fails("cloud", "serve", "--models", root, "--model", "tiny")
    assert "tiny/model.yaml: batchin: unknown key: did you mean batching?" in line


def test_unknown_model_is_reported_with_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """Covers a typing error in the name of a model."""
    line = fails("cloud", "serve", "--models", _repository(tmp_path / "models"), "--model", "tniy")
    assert "no model 'tniy': did you mean tiny?" in line
