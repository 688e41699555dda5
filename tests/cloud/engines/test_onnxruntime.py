from pathlib import Path

import numpy as np
import pytest

from cloud.engines.engine import EngineError, Placement, Precision
from cloud.models.repository import Repository
from tests.support import onnx_models, tiny_models

pytest.importorskip("onnxruntime")


def test_a_planar_float_model_gives_the_masks_of_numpy(tmp_path: Path) -> None:
    """Most ONNX files come from PyTorch: planes first, floats in, scores out; the engine does the rest."""
    onnx_models.add(tmp_path, onnx_models.model())
    pictures = tiny_models.noise(3)
    with Repository(tmp_path).load("foreign", max_batch=3) as model:
        np.testing.assert_array_equal(model.predict(pictures), onnx_models.masks(pictures))


@pytest.mark.parametrize("place", ["weights.bin", "../elsewhere.bin", "/etc/hostname"])
def test_weights_outside_the_hashed_file_are_not_read(tmp_path: Path, place: str) -> None:
    """The hash is of the file: weights beside it could be changed by anybody, and elsewhere be anything."""
    folder = onnx_models.add(tmp_path, onnx_models.model(weights_in=place))
    for path in (folder / "weights.bin", tmp_path / "elsewhere.bin"):
        path.write_bytes(onnx_models.WEIGHTS.tobytes())
    with pytest.raises(EngineError, match="cannot load this file"):
        Repository(tmp_path).load("foreign")


def test_weights_in_the_hashed_folder_are_read(tmp_path: Path) -> None:
    """A network of more than 2 GiB has its weights beside it: the manifest names the folder, and its hash covers both."""
    folder = onnx_models.add(tmp_path, onnx_models.model(weights_in="weights.bin"), "network/model.onnx")
    (folder / "network" / "weights.bin").write_bytes(onnx_models.WEIGHTS.tobytes())
    onnx_models.describe(folder, "network")
    with Repository(tmp_path).load("foreign") as model:
        np.testing.assert_array_equal(model.predict(tiny_models.noise(1)), onnx_models.masks(tiny_models.noise(1)))


def test_another_precision_than_the_files_is_refused(tmp_path: Path) -> None:
    """Asked for bf16 and given fp32, a study would compare a thing with itself."""
    onnx_models.add(tmp_path, onnx_models.model())
    with pytest.raises(EngineError, match="holds fp32 numbers and onnxruntime computes in those, not in bf16"):
        Repository(tmp_path).load("foreign", Placement(precision=Precision.BF16))
