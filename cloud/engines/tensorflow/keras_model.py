"""Keras files, `.keras` and `.h5`: frozen into one graph, in inference mode.

Keras's safe mode is on, but it is no boundary: open only files that you trust. The repository's hash says which.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graph_session import first_line, freeze
from cloud.engines.tensorflow.graphdef import FrozenModel, named
from cloud.engines.tensorflow.keras_limits import check_size
from cloud.engines.tensorflow.library import tf
from cloud.models.manifest import Manifest


def read_keras(path: Path) -> Any:
    """A Keras model, without its optimiser, loaded on the CPU.

    Raises:
        EngineError: the file is missing, no Keras model, far larger in memory, or has no fixed inputs and outputs.
    """
    keras = import_module("keras")  # After TensorFlow, which must be imported quietly first.
    if not path.is_file():
        raise EngineError(path, "is not there")
    check_size(path)
    try:
        with tf.device("/cpu:0"):
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # A damaged one fails in whatever part of Keras or HDF5 meets the damage first.
        raise EngineError(path, f"Keras cannot load this file: {first_line(error)}") from error
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise EngineError(path, "has no fixed inputs and outputs: save a functional or sequential model that was built")
    return model


def freeze_keras(model: Any, path: Path) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Freeze a model in inference mode: its GraphDef, and the tensor in it for each input's and output's name.

    Raises:
        EngineError: it cannot be frozen.
    """
    input_names = [tensor.name for tensor in model.inputs]
    # A sequential model names no outputs: its one output is its last layer's.
    output_names = getattr(model, "output_names", None) or [model.layers[-1].name]
    specifications = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=f"input_{index}") for index, tensor in enumerate(model.inputs)
    ]

    def answers(*pictures: Any) -> Any:
        given = model(list(pictures) if len(pictures) > 1 else pictures[0], training=False)
        return tf.nest.flatten(given)

    try:
        with tf.device("/cpu:0"):
            function = tf.function(answers, autograph=False).get_concrete_function(*specifications)
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        raise EngineError(path, f"cannot be traced: {first_line(error)}") from error
    graph, inputs, outputs = freeze(function, path)
    return graph, dict(zip(input_names, inputs, strict=True)), dict(zip(output_names, outputs, strict=True))


def read_frozen_keras(path: Path, manifest: Manifest) -> FrozenModel:
    """Read a Keras file; the manifest's tensors are the names of its inputs and outputs.

    Raises:
        EngineError: it cannot be loaded or frozen, or has no such input or output.
    """
    graph, inputs, outputs = freeze_keras(read_keras(path), path)
    return named(graph, inputs, outputs, manifest, path=path, has="has")
