"""Files that are no model to run: `inspect` says what each is and what to do, and writes nothing."""

import os
import pickle
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cloud.engines.tensorflow.runtime import tf
from modelling.inspection.inspection import inspect
from modelling.model_cli import model as model_command
from shared.inference.engine import EngineError

v1 = tf.compat.v1
_FREEZE = "is not frozen: the value of .* is not in the graph: .*convert_variables_to_constants"
_CHECKPOINT = "is part of a checkpoint"


def _network(*, resource: bool) -> Any:
    """Builds a network with one variable in the current graph; returns its output."""
    images = v1.placeholder(tf.float32, [1, 16, 16, 3], name="input")
    with v1.variable_scope("v", use_resource=resource):
        weights = v1.get_variable("w", [3, 3, 3, 5])
    return tf.nn.conv2d(images, weights, 1, "SAME", name="logits")


def _graph(build: Callable[[], Any]) -> Any:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def _keras() -> Any:
    keras = import_module("keras")
    return keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(5, 3, padding="same")])


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("resource", [False, True], ids=["VariableV2", "VarHandleOp"])
def test_a_graph_with_variables_is_not_written(tmp_path: Path, resource: bool) -> None:  # noqa: FBT001 - a parameter.
    """Its weights are in a checkpoint, so it cannot run."""
    path = _write(tmp_path / "u.pb", _graph(lambda: _network(resource=resource)).SerializeToString())
    done = CliRunner().invoke(model_command, ["inspect", str(path), "--write", str(tmp_path / "models" / "u")])
    assert done.exit_code != 0
    assert isinstance(done.exception, EngineError)
    assert "'v/w'" in str(done.exception)
    assert not (tmp_path / "models").exists()


def test_the_graph_of_a_function_takes_its_variables_as_inputs(tmp_path: Path) -> None:
    """A graph from tf.function has placeholders of resources instead of variables."""
    network = _keras()
    function = tf.function(lambda x: network(x), autograph=False)  # noqa: PLW0108 - Keras objects have no signature.
    graph = function.get_concrete_function(tf.TensorSpec((1, 16, 16, 3))).graph.as_graph_def()
    with pytest.raises(EngineError, match=_FREEZE):
        inspect(_write(tmp_path / "f.pb", graph.SerializeToString()))


def test_tables_are_refused(tmp_path: Path) -> None:
    """A table is filled when the model is loaded, which a frozen graph does not do."""

    def build() -> None:
        images = v1.placeholder(tf.float32, [1, 16, 16, 3], name="input")
        keys = tf.range(3, dtype=tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), 0)
        table.lookup(tf.argmax(images, -1), name="prediction")

    with pytest.raises(EngineError, match=_FREEZE):
        inspect(_write(tmp_path / "t.pb", _graph(build).SerializeToString()))

    class Lookup(tf.Module):  # type: ignore[misc]  # TensorFlow has no types.
        def __init__(self) -> None:
            keys = tf.range(3, dtype=tf.int64)
            self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), 0)

        @tf.function(input_signature=[tf.TensorSpec((1, 16, 16, 3), tf.float32)])  # type: ignore[untyped-decorator]
        def infer(self, image: Any) -> Any:
            return {"mask": self.table.lookup(tf.argmax(image, -1))}

    module = Lookup()
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": module.infer})
    with pytest.raises(EngineError, match=r"uses a table .*: replace the lookup by tf.gather"):
        inspect(tmp_path / "saved")


def test_a_variable_that_the_output_does_not_need_is_no_obstacle(tmp_path: Path) -> None:
    """Graphs from training scripts keep counters and optimisers."""

    def build() -> None:
        v1.get_variable("global_step", [], use_resource=False)
        tf.nn.conv2d(v1.placeholder(tf.float32, [1, 16, 16, 3], name="input"), np.ones((1, 1, 3, 5), "f"), 1, "SAME")

    assert inspect(_write(tmp_path / "m.pb", _graph(build).SerializeToString())).interface.classes == 5


def test_every_file_of_a_checkpoint_is_recognised(tmp_path: Path) -> None:
    """Also a .meta file that was renamed to .pb."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        _network(resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "ck" / "model.ckpt"))
    files = sorted((tmp_path / "ck").iterdir())
    assert len(files) == 4
    for path in (*files, tmp_path / "ck"):
        with pytest.raises(EngineError, match=_CHECKPOINT):
            inspect(path)
    meta = _write(tmp_path / "model.pb", (tmp_path / "ck" / "model.ckpt.meta").read_bytes())
    with pytest.raises(EngineError, match="is a MetaGraphDef, whose variables are in a checkpoint"):
        inspect(meta)


def test_an_incomplete_saved_model_is_recognised(tmp_path: Path) -> None:
    """Of either version of TensorFlow: without its variables, or only its saved_model.pb."""
    _keras().export(tmp_path / "two", verbose=False)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        logits = _network(resource=False)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(
            session, str(tmp_path / "one"), {"x": graph.get_tensor_by_name("input:0")}, {"y": logits}
        )
    for folder in (tmp_path / "one", tmp_path / "two"):
        inspect(folder)
        shutil.rmtree(folder / "variables")
        for path in (folder, folder / "saved_model.pb"):
            with pytest.raises(EngineError, match="has no variables/: copy the whole folder"):
                inspect(path)
        renamed = shutil.copy(folder / "saved_model.pb", tmp_path / "model.pb")
        with pytest.raises(EngineError, match=r"is a SavedModel: name it saved_model.pb, beside its variables/"):
            inspect(Path(renamed))


def test_keras_files_without_a_network_or_without_weights_are_recognised(tmp_path: Path) -> None:
    """`save_weights` and `to_json` write one half each."""
    network = _keras()
    network.save_weights(tmp_path / "net.weights.h5")
    shutil.copy(tmp_path / "net.weights.h5", tmp_path / "net.h5")
    for name in ("net.weights.h5", "net.h5"):
        with pytest.raises(EngineError, match="holds weights only: load them into the model, and save it"):
            inspect(tmp_path / name)
    with pytest.raises(EngineError, match=r"is JSON, which holds no weights: .*model_from_json"):
        inspect(_write(tmp_path / "net.json", network.to_json().encode()))
    network.save(tmp_path / "whole.h5")
    assert inspect(tmp_path / "whole.h5").interface.classes == 5


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("graph.pb", b"", "is a graph as text"),
        ("graph.pbtxt", b"# exported\nnode {\n  name: 'x'\n}", "is a graph as text"),
        ("model.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a pointer of Git LFS"),
        ("model.tflite", b"<!DOCTYPE html><html>404</html>", "is a web page: download the file itself"),
        ("yolo.xml", b'<?xml version="1.0"?>\n<net name="n">', "is an OpenVINO graph: name it model.xml"),
        ("model.pt", pickle.dumps({"weight": 1}), "is a Python pickle"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}", "holds weights and no network"),
        ("weights.npz", b"PK\x03\x04", "holds weights and no network"),
        ("model.zip", b"PK\x03\x04", "is an archive: unpack it"),
        ("model.engine", b"ftrt", "is a model of another tool"),
        ("model.pb", b"\x00\x01junk", "is not a TensorFlow GraphDef"),
        ("empty.pb", b"", "is empty"),
    ],
    ids=range(12),
)
def test_other_files_are_recognised(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    """By how they begin, whatever their name, or else by their name."""
    if name == "graph.pb":
        content = str(_graph(lambda: _network(resource=False))).encode()
    with pytest.raises(EngineError, match=problem):
        inspect(_write(tmp_path / name, content))


def test_missing_and_special_files_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe would wait for ever."""
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(EngineError, match="is not a file"):
        inspect(tmp_path / "model.onnx")
    with pytest.raises(EngineError, match="does not exist: check the path"):
        inspect(tmp_path / "other.onnx")


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    """Loading it would run its code."""

    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    with pytest.raises(EngineError, match=r"never loaded because it can run any code: .*torch.jit.script"):
        inspect(_write(tmp_path / "model.pth", pickle.dumps(Trap())))
    assert not (tmp_path / "ran").exists()


def test_frozen_graphs_of_every_first_name_are_still_read(tmp_path: Path) -> None:
    """A binary graph begins with a line feed, a length and a name, which may look like text."""
    for name in ("node", "library", "versions", "n" * 21, "n" * 121):
        graph = _graph(
            lambda name=name: tf.nn.conv2d(  # type: ignore[misc]
                v1.placeholder(tf.float32, [1, 16, 16, 3], name=name), np.ones((1, 1, 3, 5), "f"), 1, "SAME"
            )
        )
        assert inspect(_write(tmp_path / "m.pb", graph.SerializeToString())).manifest.input.tensor == f"{name}:0"
