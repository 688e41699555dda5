"""Keras files that would take far more memory than their size tells."""

import io
import json
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.keras_model import read_keras

keras: Any = import_module("keras")
h5py: Any = import_module("h5py")

Members = dict[str, bytes]


@pytest.fixture(name="saved", scope="module")
def _saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network as Keras saves it."""
    layers = [keras.Input((8, 12, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    path = tmp_path_factory.mktemp("keras") / "net.keras"
    keras.Sequential([*layers, keras.layers.Conv2D(3, 1, name="last")]).save(path)
    return path


def changed(saved: Path, folder: Path, change: Callable[[Members], None]) -> Path:
    """The archive with its members changed, packed tight."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    path = folder / "changed.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def unfolds(members: Members) -> None:
    """Three hundred megabytes of nothing."""
    members["assets"] = bytes(300 << 20)


def widened(members: Members) -> None:
    """A last layer of a billion weights."""
    described = json.loads(members["config.json"])
    (last,) = (each for each in described["config"]["layers"] if each["config"].get("name") == "last")
    del last["build_config"]
    last["config"]["filters"] = 300_000_000
    members["config.json"] = json.dumps(described).encode()


def hollow(members: Members) -> None:
    """A list of weights of four gigabytes, of which none is stored."""
    file = io.BytesIO(members["model.weights.h5"])
    with h5py.File(file, "r+") as stored:
        stored.create_dataset("zeros", (1 << 30,), "f4", chunks=(1 << 20,), compression="gzip")
    members["model.weights.h5"] = file.getvalue()


def many(members: Members) -> None:
    """More files than any network has."""
    members.update({str(number): b"" for number in range(5000)})


def long_winded(members: Members) -> None:
    """A description that is none."""
    members["config.json"] += b" " * (17 << 20)


def test_what_keras_saves_is_loaded(saved: Path, tmp_path: Path) -> None:
    """Also after another was refused: what was counted leaves nothing behind."""
    picture = np.ones((1, 8, 12, 3), np.float32)
    expected = keras.saving.load_model(saved)(picture)
    with pytest.raises(EngineError):
        read_keras(changed(saved, tmp_path, widened))
    np.testing.assert_array_equal(read_keras(saved)(picture), expected)
    old = tmp_path / "net.h5"
    keras.saving.load_model(saved).save(old)
    np.testing.assert_array_equal(read_keras(old)(picture), expected)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (unfolds, "bytes of memory unpacked, of its file at most"),
        (widened, "bytes of memory as it is described, of its file at most"),
        (hollow, "bytes of memory unpacked, of its file at most"),
        (many, "holds 50.. files: at most 4096"),
        (long_winded, "its config.json is larger than"),
        (lambda members: members.pop("config.json"), "Keras cannot load this file"),
        (lambda members: members.update({"config.json": b"["}), "Keras cannot load this file"),
        (lambda members: members.update({"model.weights.h5": b"x"}), "Keras cannot load this file"),
    ],
)
def test_what_would_take_far_more_than_its_size_is_refused(
    saved: Path, tmp_path: Path, change: Callable[[Members], None], problem: str
) -> None:
    """An archive of 3 MB took seven gigabytes."""
    with pytest.raises(EngineError, match=problem):
        read_keras(changed(saved, tmp_path, change))


def test_an_old_file_is_held_to_what_it_stores(saved: Path, tmp_path: Path) -> None:
    """Of HDF5 too a few kilobytes may say gigabytes."""
    path = tmp_path / "net.h5"
    keras.saving.load_model(saved).save(path)
    with h5py.File(path, "r+") as stored:
        stored.create_dataset("zeros", (1 << 30,), "f4", chunks=(1 << 20,), compression="gzip")
    with pytest.raises(EngineError, match="bytes of memory unpacked"):
        read_keras(path)
