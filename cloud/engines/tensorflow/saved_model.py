"""SavedModels: a signature, frozen into one graph."""

from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graph_session import first_line, freeze
from cloud.engines.tensorflow.graphdef import FrozenModel, check_count, named
from cloud.engines.tensorflow.library import tf
from cloud.models.manifest import Manifest
from shared.errors import suggestion

saved_model_pb2: Any = import_module("tensorflow.core.protobuf.saved_model_pb2")  # Any: it ships no types.


def read_saved_model(path: Path) -> Any:
    """A SavedModel, loaded on the CPU; `.signatures` maps names to concrete functions, which live as long as it does.

    Raises:
        EngineError: the folder is no SavedModel, or this TensorFlow cannot load it.
    """
    file = path / "saved_model.pb"
    if not file.is_file():
        raise EngineError(path, "is no SavedModel: give the folder that holds saved_model.pb and variables/")
    try:
        described = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        for each in described.meta_graphs:
            check_count(each.graph_def, path)
        with tf.device("/cpu:0"):
            return tf.saved_model.load(str(path))
    except EngineError:
        raise
    except Exception as error:  # A damaged one fails in whatever part of TensorFlow meets the damage first.
        raise EngineError(path, f"TensorFlow cannot load this SavedModel: {first_line(error)}") from error


def freeze_signature(function: Any, path: Path) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Freeze a signature: its GraphDef, and the tensor in it for each input key and each output key.

    Raises:
        EngineError: it cannot be frozen.
    """
    graph, inputs, outputs = freeze(function, path)
    # Both lie in the order in which TensorFlow flattens a map: by sorted key.
    input_keys, output_keys = sorted(function.structured_input_signature[1]), sorted(function.structured_outputs)
    return graph, dict(zip(input_keys, inputs, strict=True)), dict(zip(output_keys, outputs, strict=True))


def read_frozen_signature(path: Path, manifest: Manifest) -> FrozenModel:
    """Read a SavedModel's folder; the manifest's tensors are the keys of its signature.

    Raises:
        EngineError: it cannot be loaded or frozen, or has no such signature, input or output.
    """
    loaded = read_saved_model(path)
    name = manifest.signature
    if name not in loaded.signatures:
        raise EngineError(path, f"has no signature {name!r}{suggestion(name, loaded.signatures)}")
    graph, inputs, outputs = freeze_signature(loaded.signatures[name], path)
    return named(graph, inputs, outputs, manifest, path=path, has="its signature has")
