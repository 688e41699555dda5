"""Reads SavedModels and freezes a signature into one graph."""

from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.graph_session import freeze
from cloud.engines.tensorflow.graphdef import FrozenModel, check_count, frozen_model
from cloud.engines.tensorflow.runtime import tf
from shared.errors import error_reason, suggestion
from shared.inference.engine import EngineError
from shared.models.manifest import Manifest

saved_model_pb2: Any = import_module("tensorflow.core.protobuf.saved_model_pb2")  # Any: no type hints.


def read_saved_model(path: Path) -> Any:
    """Loads a SavedModel on the CPU.

    The result's `.signatures` maps names to concrete functions, which are valid only while the result exists.

    Raises:
        EngineError: the folder is not a SavedModel, or this TensorFlow cannot load it.
    """
    file = path / "saved_model.pb"
    if not file.is_file():
        raise EngineError(path, "is not a SavedModel: give the folder that holds saved_model.pb and variables/")
    try:
        proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        for each in proto.meta_graphs:
            check_count(each.graph_def, path)
        with tf.device("/cpu:0"):
            return tf.saved_model.load(str(path))
    except EngineError:
        raise
    except Exception as error:  # Any part of TensorFlow may raise its own error for a damaged file.
        if not (path / "variables" / "variables.index").is_file():
            raise EngineError(path, "has no variables/: copy the whole folder that holds saved_model.pb") from error
        raise EngineError(path, f"TensorFlow cannot load this SavedModel: {error_reason(error)}") from error


def freeze_signature(function: Any, path: Path) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Freezes a signature; returns its GraphDef and the graph tensors by input key and by output key.

    Raises:
        EngineError: the signature cannot be frozen.
    """
    graph, inputs, outputs = freeze(function, path)
    # TensorFlow flattens a dict in the order of its sorted keys.
    input_keys, output_keys = sorted(function.structured_input_signature[1]), sorted(function.structured_outputs)
    return graph, dict(zip(input_keys, inputs, strict=True)), dict(zip(output_keys, outputs, strict=True))


def read_frozen_signature(path: Path, manifest: Manifest) -> FrozenModel:
    """Reads a SavedModel's folder; the manifest's tensors are the keys of its signature.

    Raises:
        EngineError: the model cannot be loaded or frozen, or has no such signature, input or output.
    """
    loaded = read_saved_model(path)
    name = manifest.signature
    if name not in loaded.signatures:
        raise EngineError(path, f"has no signature {name!r}{suggestion(name, loaded.signatures)}")
    graph, inputs, outputs = freeze_signature(loaded.signatures[name], path)
    return frozen_model(graph, inputs, outputs, manifest, path=path, owner="its signature")
