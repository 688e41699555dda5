"""Reads Keras files (`.keras`, `.h5`) and freezes them into one graph in inference mode.

Keras's safe mode is enabled, but it is not a security boundary: open trusted files only. The repository's hash pins them.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.graph_session import error_summary, freeze
from cloud.engines.tensorflow.graphdef import FrozenModel, frozen_model
from cloud.engines.tensorflow.keras_limits import check_size
from cloud.engines.tensorflow.runtime import tf
from shared.inference.engine import EngineError
from shared.models.manifest import Manifest


def read_keras(path: Path) -> Any:
    """Loads a Keras model on the CPU, without its optimiser.

    Raises:
        EngineError: the file is missing, is not a Keras model, needs too much memory, or lacks fixed inputs and outputs.
    """
    keras = import_module("keras")  # Imported here, because `runtime` must import TensorFlow first.
    if not path.is_file():
        raise EngineError(path, "does not exist")
    check_size(path)
    try:
        with tf.device("/cpu:0"):
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras or HDF5 may raise any error for a damaged file.
        raise EngineError(path, f"Keras cannot load this file: {error_summary(error)}") from error
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise EngineError(path, "has no fixed inputs and outputs: save a functional or sequential model that was built")
    return model


def freeze_keras(model: Any, path: Path) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Freezes a model in inference mode; returns its GraphDef and the graph tensors by input name and by output name.

    Raises:
        EngineError: the model cannot be frozen.
    """
    input_names = [tensor.name for tensor in model.inputs]
    # A sequential model has no output names; its one output is that of its last layer.
    output_names = getattr(model, "output_names", None) or [model.layers[-1].name]
    specifications = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=f"input_{index}") for index, tensor in enumerate(model.inputs)
    ]

    def call(*inputs: Any) -> Any:
        return tf.nest.flatten(model(list(inputs) if len(inputs) > 1 else inputs[0], training=False))

    try:
        with tf.device("/cpu:0"):
            function = tf.function(call, autograph=False).get_concrete_function(*specifications)
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        raise EngineError(path, f"cannot be traced: {error_summary(error)}") from error
    graph, inputs, outputs = freeze(function, path)
    return graph, dict(zip(input_names, inputs, strict=True)), dict(zip(output_names, outputs, strict=True))


def read_frozen_keras(path: Path, manifest: Manifest) -> FrozenModel:
    """Reads a Keras file; the manifest's tensors are the names of its inputs and outputs.

    Raises:
        EngineError: the file cannot be loaded or frozen, or has no such input or output.
    """
    graph, inputs, outputs = freeze_keras(read_keras(path), path)
    return frozen_model(graph, inputs, outputs, manifest, path=path, owner="the model")
