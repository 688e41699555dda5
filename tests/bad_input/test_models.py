"""Models that cannot be served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from shared.hashing import tree_sha256
from tests.bad_input.worker import HEIGHT, WIDTH


def _repository(root: Path, graph: bytes = b"", **changes: Any) -> Path:
    """A repository with one model, whose file `graph` is."""
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


def test_a_graph_without_the_named_tensors(fails: Callable[..., str], tmp_path: Path) -> None:
    """Told before any broker is asked for, with the nearest that there are."""
    from cloud.engines.tensorflow.library import tf  # noqa: PLC0415 (slow, and only here)

    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, HEIGHT, WIDTH, 3), "inputs")
        tf.identity(images[..., 0], "prediction")
    root = _repository(tmp_path / "models", graph.as_graph_def().SerializeToString())
    line = fails("cloud", "serve", "--models", root, "--model", "tiny", "--device", "cpu")
    assert "model.pb" in line
    assert "input:0" in line
    assert "inputs" in line


def test_a_manifest_with_an_unknown_key_offers_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """A key that is silently ignored is a setting that does not work."""
    root = _repository(tmp_path / "models", batchin={"max_size": 4})
    line = fails("cloud", "serve", "--models", root, "--model", "tiny")
    assert "tiny/model.yaml: batchin: unknown key: did you mean batching?" in line


def test_a_model_that_is_not_in_the_repository_offers_the_nearest(fails: Callable[..., str], tmp_path: Path) -> None:
    """As a topic."""
    line = fails("cloud", "serve", "--models", _repository(tmp_path / "models"), "--model", "tniy")
    assert "no model 'tniy': did you mean tiny?" in line
