from pathlib import Path

import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from shared.inference.engine import EngineError
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from tests.support import onnx_models, tiny_models

pytest.importorskip("onnxruntime")


def test_a_planar_float_model_gives_the_masks_of_numpy(tmp_path: Path) -> None:
    """ONNX files from PyTorch take planar floats and return scores; the engine adds scaling and arg max."""
    onnx_models.add(tmp_path, onnx_models.model())
    images = tiny_models.noise(3)
    with ModelLoader(Repository(tmp_path), max_batch=3).open("foreign") as model:
        np.testing.assert_array_equal(model.predict(images), onnx_models.masks(images))


@pytest.mark.parametrize("location", ["weights.bin", "../elsewhere.bin", "/etc/hostname"])
def test_weights_outside_of_the_hashed_file_are_not_read(tmp_path: Path, location: str) -> None:
    """The manifest's hash covers the file only, so external weights could be any file."""
    folder = onnx_models.add(tmp_path, onnx_models.model(weights_in=location))
    for path in (folder / "weights.bin", tmp_path / "elsewhere.bin"):
        path.write_bytes(onnx_models.WEIGHTS.tobytes())
    with pytest.raises(EngineError, match="keeps weights in"):
        ModelLoader(Repository(tmp_path)).open("foreign")


def test_weights_in_the_hashed_folder_are_read(tmp_path: Path) -> None:
    """A network of more than 2 GiB has external weights; the manifest then names the folder, and the hash covers both."""
    folder = onnx_models.add(tmp_path, onnx_models.model(weights_in="weights.bin"), "network/model.onnx")
    (folder / "network" / "weights.bin").write_bytes(onnx_models.WEIGHTS.tobytes())
    onnx_models.write_manifest(folder, "network")
    with ModelLoader(Repository(tmp_path)).open("foreign") as model:
        np.testing.assert_array_equal(model.predict(tiny_models.noise(1)), onnx_models.masks(tiny_models.noise(1)))


def test_a_precision_other_than_the_files_is_refused(tmp_path: Path) -> None:
    """A comparison of bf16 with fp32 must not measure fp32 twice."""
    onnx_models.add(tmp_path, onnx_models.model())
    with pytest.raises(EngineError, match="holds fp32 numbers and onnxruntime computes in those, not in bf16"):
        ModelLoader(Repository(tmp_path), Placement(precision=Precision.BF16)).open("foreign")
