"""Reads Keras files (`.keras`, `.h5`) and freezes them into one graph in inference mode.

Keras's safe mode is enabled, but it is not a security boundary: open trusted files only. The repository's hash pins them.
"""

import io
import json
import zipfile
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloud.engines.tensorflow.graph_session import freeze
from cloud.engines.tensorflow.graphdef import FrozenModel, frozen_model
from cloud.engines.tensorflow.runtime import tf
from shared.errors import error_reason
from shared.inference.engine import EngineError
from shared.models.manifest import Manifest

# The weights may take MAX_GROWTH times the file's size plus MAX_SMALL_MODEL_BYTES; constant weights compress to nothing.
MAX_GROWTH = 4
MAX_SMALL_MODEL_BYTES = 256 << 20
MAX_CONFIG_BYTES = 16 << 20
MAX_MEMBERS = 4096  # Files in an archive.

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


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
        raise EngineError(path, f"Keras cannot load this file: {error_reason(error)}") from error
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
        raise EngineError(path, f"cannot be traced: {error_reason(error)}") from error
    graph, inputs, outputs = freeze(function, path)
    return graph, dict(zip(input_names, inputs, strict=True)), dict(zip(output_names, outputs, strict=True))


def read_frozen_keras(path: Path, manifest: Manifest) -> FrozenModel:
    """Reads a Keras file; the manifest's tensors are the names of its inputs and outputs.

    Raises:
        EngineError: the file cannot be loaded or frozen, or has no such input or output.
    """
    graph, inputs, outputs = freeze_keras(read_keras(path), path)
    return frozen_model(graph, inputs, outputs, manifest, path=path, owner="the model")


def check_size(path: Path) -> None:
    """Refuses a Keras file that needs far more memory than its size suggests, or that describes no network.

    For an archive (`.keras`), this counts the variables of the described network without creating them. For an HDF5 file
    (`.h5`), it counts the stored weights only.

    Raises:
        EngineError: the file needs too much memory, or cannot be read.
    """
    limit = MAX_GROWTH * path.stat().st_size + MAX_SMALL_MODEL_BYTES
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _check_archive(archive, path, limit)
        else:
            with path.open("rb") as file:
                _check_stored(file, path, limit)
            _check_described(path)
    except EngineError:
        raise
    except Exception as error:  # Any library may raise its own error for a damaged file.
        raise EngineError(path, f"Keras cannot load this file: {error_reason(error)}") from error


def _check_archive(archive: zipfile.ZipFile, path: Path, limit: int) -> None:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise EngineError(path, f"holds {len(members)} files: at most {MAX_MEMBERS} are read")
    _check(sum(member.file_size for member in members), limit, path, "unpacked")
    if archive.getinfo(_CONFIG).file_size > MAX_CONFIG_BYTES:
        raise EngineError(path, f"its {_CONFIG} is larger than {MAX_CONFIG_BYTES} bytes: this describes no network")
    _check(_variable_bytes(json.loads(archive.read(_CONFIG))), limit, path, "as described")
    if _WEIGHTS in archive.namelist():
        _check_stored(io.BytesIO(archive.read(_WEIGHTS)), path, limit)


def _variable_bytes(config: Any) -> int:
    """Returns the memory of a network's variables in bytes, without creating them."""
    keras = import_module("keras")
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(config, safe_mode=True)
            return sum(prod(each.shape) * np.dtype(each.dtype).itemsize for each in model.variables)
    finally:
        keras.backend.clear_session()  # Otherwise Keras creates the variables later.


def _check_stored(file: BinaryIO, path: Path, limit: int) -> None:
    h5py = import_module("h5py")
    total = 0

    def add(_: str, entry: Any) -> None:
        nonlocal total
        if isinstance(entry, h5py.Dataset):
            total += entry.nbytes
            _check(total, limit, path, "unpacked")

    with h5py.File(file, "r") as stored:
        stored.visititems(add)


def _check_described(path: Path) -> None:
    with import_module("h5py").File(path, "r") as stored:
        if "model_config" not in stored.attrs:
            raise EngineError(path, "holds weights only: load them into the model, and save it with model.save")


def _check(size: int, limit: int, path: Path, state: str) -> None:
    if size > limit:
        raise EngineError(
            path, f"takes {size} bytes of memory {state}; a file of its size may take {limit}: not loaded"
        )
