"""Checks the memory needs of a Keras file before Keras opens it: a 3 MB archive can expand to thousands of times that."""

import io
import json
import zipfile
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloud.engines.tensorflow.graph_session import error_summary
from shared.inference.engine import EngineError

# The weights may take MAX_GROWTH times the file's size plus MAX_SMALL_MODEL_BYTES; constant weights compress to nothing.
MAX_GROWTH = 4
MAX_SMALL_MODEL_BYTES = 256 << 20
MAX_CONFIG_BYTES = 16 << 20
MAX_MEMBERS = 4096  # Files in an archive.

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


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
        raise EngineError(path, f"Keras cannot load this file: {error_summary(error)}") from error


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
