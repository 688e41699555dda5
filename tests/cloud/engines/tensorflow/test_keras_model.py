"""Keras files that need far more memory than their size suggests."""

import io
import json
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.keras_model import read_keras
from shared.inference.engine import EngineError

keras: Any = import_module("keras")
h5py: Any = import_module("h5py")

Members = dict[str, bytes]


@pytest.fixture(name="saved", scope="module")
def _saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small network."""
    layers = [keras.Input((8, 12, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    path = tmp_path_factory.mktemp("keras") / "net.keras"
    keras.Sequential([*layers, keras.layers.Conv2D(3, 1, name="last")]).save(path)
    return path


def changed(saved: Path, folder: Path, change: Callable[[Members], None]) -> Path:
    """Writes a compressed copy of the archive with changed members; returns its path."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    path = folder / "changed.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def add_zeros(members: Members) -> None:
    """Adds a file of 300 MiB zeros."""
    members["assets"] = bytes(300 << 20)


def enlarge_layer(members: Members) -> None:
    """Sets the last layer to a billion weights."""
    config = json.loads(members["config.json"])
    (last,) = (each for each in config["config"]["layers"] if each["config"].get("name") == "last")
    del last["build_config"]
    last["config"]["filters"] = 300_000_000
    members["config.json"] = json.dumps(config).encode()


def add_empty_dataset(members: Members) -> None:
    """Adds weights of 4 GiB without stored values."""
    file = io.BytesIO(members["model.weights.h5"])
    with h5py.File(file, "r+") as stored:
        stored.create_dataset("zeros", (1 << 30,), "f4", chunks=(1 << 20,), compression="gzip")
    members["model.weights.h5"] = file.getvalue()


def add_many_files(members: Members) -> None:
    """Adds more files than any network has."""
    members.update({str(number): b"" for number in range(5000)})


def enlarge_config(members: Members) -> None:
    """Pads the description to more than its limit."""
    members["config.json"] += b" " * (17 << 20)


def test_a_normal_file_is_loaded_after_another_was_refused(saved: Path, tmp_path: Path) -> None:
    """Counting the variables of a refused file leaves no state in Keras."""
    image = np.ones((1, 8, 12, 3), np.float32)
    expected = keras.saving.load_model(saved)(image)
    with pytest.raises(EngineError):
        read_keras(changed(saved, tmp_path, enlarge_layer))
    np.testing.assert_array_equal(read_keras(saved)(image), expected)
    old_format = tmp_path / "net.h5"
    keras.saving.load_model(saved).save(old_format)
    np.testing.assert_array_equal(read_keras(old_format)(image), expected)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (add_zeros, "bytes of memory unpacked; a file of its size may take"),
        (enlarge_layer, "bytes of memory as described; a file of its size may take"),
        (add_empty_dataset, "bytes of memory unpacked; a file of its size may take"),
        (add_many_files, "holds 50.. files: at most 4096"),
        (enlarge_config, "its config.json is larger than"),
        (lambda members: members.pop("config.json"), "Keras cannot load this file"),
        (lambda members: members.update({"config.json": b"["}), "Keras cannot load this file"),
        (lambda members: members.update({"model.weights.h5": b"x"}), "Keras cannot load this file"),
    ],
)
def test_an_oversized_or_damaged_archive_is_refused(
    saved: Path, tmp_path: Path, change: Callable[[Members], None], problem: str
) -> None:
    """Without the limits, an archive of 3 MB took seven gigabytes of memory."""
    with pytest.raises(EngineError, match=problem):
        read_keras(changed(saved, tmp_path, change))


def test_an_oversized_hdf5_file_is_refused(saved: Path, tmp_path: Path) -> None:
    """A few kilobytes of HDF5 can declare gigabytes."""
    path = tmp_path / "net.h5"
    keras.saving.load_model(saved).save(path)
    with h5py.File(path, "r+") as stored:
        stored.create_dataset("zeros", (1 << 30,), "f4", chunks=(1 << 20,), compression="gzip")
    with pytest.raises(EngineError, match="bytes of memory unpacked"):
        read_keras(path)
