"""What a Keras file may take, found out before Keras opens it: an archive of 3 MB can unfold to thousands of times that."""

import io
import json
import zipfile
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graph_session import first_line

MAX_GROWTH = 4  # How many times its file a model's weights may take, beside:
MAX_SMALL_MODEL_BYTES = 256 << 20  # Weights of one value compress to nothing.
MAX_CONFIG_BYTES = 16 << 20
MAX_MEMBERS = 4096  # Of an archive.

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


def check_size(path: Path) -> None:
    """Refuse a Keras file that would take far more memory than its size tells.

    Of an archive (`.keras`) that is counted without making any variable. A file of HDF5 (`.h5`) is held to its stored
    weights alone.

    Raises:
        EngineError: it would, or it cannot be read.
    """
    most = MAX_GROWTH * path.stat().st_size + MAX_SMALL_MODEL_BYTES
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _check_archive(archive, path, most)
        else:
            with path.open("rb") as file:
                _check_stored(file, path, most)
    except EngineError:
        raise
    except Exception as error:  # A damaged one fails in whatever library meets the damage first.
        raise EngineError(path, f"Keras cannot load this file: {first_line(error)}") from error


def _check_archive(archive: zipfile.ZipFile, path: Path, most: int) -> None:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise EngineError(path, f"holds {len(members)} files: at most {MAX_MEMBERS} are read")
    _check(sum(member.file_size for member in members), most, path, "unpacked")
    if archive.getinfo(_CONFIG).file_size > MAX_CONFIG_BYTES:
        raise EngineError(path, f"its {_CONFIG} is larger than {MAX_CONFIG_BYTES} bytes: this describes no network")
    _check(_variable_bytes(json.loads(archive.read(_CONFIG))), most, path, "as it is described")
    if _WEIGHTS in archive.namelist():
        _check_stored(io.BytesIO(archive.read(_WEIGHTS)), path, most)


def _variable_bytes(config: Any) -> int:
    """What a network's variables take, of which none is made."""
    keras = import_module("keras")
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(config, safe_mode=True)
            return sum(prod(each.shape) * np.dtype(each.dtype).itemsize for each in model.variables)
    finally:
        keras.backend.clear_session()  # It would make the variables later.


def _check_stored(file: BinaryIO, path: Path, most: int) -> None:
    h5py = import_module("h5py")
    total = 0

    def add(_: str, entry: Any) -> None:
        nonlocal total
        if isinstance(entry, h5py.Dataset):
            total += entry.nbytes
            _check(total, most, path, "unpacked")

    with h5py.File(file, "r") as stored:
        stored.visititems(add)


def _check(size: int, most: int, path: Path, how: str) -> None:
    if size > most:
        raise EngineError(path, f"takes {size} bytes of memory {how}, of its file at most {most}: not loaded")
