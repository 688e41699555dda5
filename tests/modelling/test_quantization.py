import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from modelling.quantization import (
    CalibrationError,
    CalibrationFrames,
    HoldoutFrame,
    QuantisationError,
    bag_frames,
    quantise,
    synthetic_frames,
)
from rosbag_tools.drive.recording import DrivePlan, record
from shared.errors import MissingExtraError
from shared.files import tree_sha256
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository

HEIGHT, WIDTH, CLASSES = 24, 32, 5

_WITHOUT_NETWORK = """
import socket, sys
from pathlib import Path

def refuse(*arguments):
    print("CONNECTED", arguments[1:], flush=True)
    raise OSError("no network here")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
from tests.modelling.test_quantization import repository_in, random_frames
from modelling.quantization import quantise
from shared.models.manifest import Precision
quantise(repository_in(Path(sys.argv[1])), "tiny", Precision.INT8, random_frames(), new_name="tiny-int8")
"""


def repository_in(root: Path) -> Repository:
    """Returns a repository with model `tiny`: a frozen graph of two convolutions with scaling in its manifest."""
    rng = np.random.default_rng(7)
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.float32, (None, HEIGHT, WIDTH, 3), "input")
        hidden = tf.nn.relu(tf.nn.conv2d(images, rng.normal(size=(3, 3, 3, 16)).astype(np.float32), 1, "SAME"))
        scores = tf.nn.conv2d(hidden, rng.normal(size=(1, 1, 16, CLASSES)).astype(np.float32), 1, "SAME")
        tf.identity(scores, "scores")
    folder = root / "tiny"
    folder.mkdir()
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    manifest = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input", "dtype": "float32", "height": HEIGHT, "width": WIDTH, "scale": 1 / 255},
        "output": {"tensor": "scores", "kind": "scores"},
        "labels": [{"name": f"class-{number}", "colour": [number, 0, 0]} for number in range(CLASSES)],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return Repository(root)


def random_frames() -> CalibrationFrames:
    """Returns six random images to calibrate with, and four others."""
    images = list(np.random.default_rng(1).integers(0, 256, (10, HEIGHT, WIDTH, 3), np.uint8))
    return CalibrationFrames(images[:6], [HoldoutFrame(image) for image in images[6:]])


@pytest.mark.parametrize(("precision", "floor"), [(Precision.FP16, 0.99), (Precision.INT8, 0.9)])
def test_a_quantised_model_is_loaded_by_its_manifest(tmp_path: Path, precision: Precision, floor: float) -> None:
    """The manifest names the source, the model gives nearly the same labels, and int8 is not only declared."""
    repository, frames = repository_in(tmp_path), random_frames()
    result = quantise(repository, "tiny", precision, frames, new_name="smaller")
    manifest = repository.find("smaller").manifest
    assert manifest.precision is precision
    assert manifest.converted_from is not None
    assert manifest.converted_from.sha256 == repository.find("tiny").manifest.sha256
    assert manifest.agreement == result.agreement
    assert floor < result.agreement <= 1
    images = np.stack([each.image for each in frames.holdout])
    with (
        ModelLoader(repository, Placement(device="cpu")).open("tiny") as tiny,
        ModelLoader(repository).open("smaller") as smaller,
    ):
        assert smaller.engine_name == "openvino"
        assert np.mean(tiny.predict(images) == smaller.predict(images)) == pytest.approx(result.agreement)
    written = (tmp_path / "smaller" / "ir" / "model.xml").read_text()
    assert ('type="FakeQuantize"' in written) == ('element_type="i8"' in written) == (precision is Precision.INT8)


def test_quantisation_sends_no_telemetry(tmp_path: Path) -> None:
    """NNCF and OpenVINO's tools send usage data by default."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    (tmp_path / "models").mkdir()
    arguments = [sys.executable, "-c", _WITHOUT_NETWORK, str(tmp_path / "models")]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "CONNECTED" not in ran.stdout
    assert not (home / "intel").exists()  # The folder of the telemetry's user id.
    assert (tmp_path / "models" / "tiny-int8" / "model.yaml").exists()


def test_an_existing_model_is_not_replaced_without_force(tmp_path: Path) -> None:
    """A worker may be serving it."""
    repository = repository_in(tmp_path)
    with pytest.raises(QuantisationError, match="exists already: choose another --name, or give --force"):
        quantise(repository, "tiny", Precision.FP16, random_frames(), new_name="tiny")


def test_a_quantised_model_is_not_quantised_again(tmp_path: Path) -> None:
    """Its agreement would be measured against a model that is already worse than the original."""
    repository = repository_in(tmp_path)
    quantise(repository, "tiny", Precision.FP16, random_frames(), new_name="half")
    with pytest.raises(QuantisationError, match="holds fp16 numbers already"):
        quantise(repository, "half", Precision.INT8, random_frames(), new_name="less")


def test_a_bags_frames_are_split_into_calibration_and_holdout(tmp_path: Path) -> None:
    """The loss is measured on frames that were not used for calibration."""
    repository = repository_in(tmp_path)
    card: Any = repository.find("tiny").card()
    bag = tmp_path / "bag"
    record(bag, DrivePlan(seed=3, frames=4, width=64, height=48))
    frames = bag_frames(card, bag, 3, 5)
    assert [each.shape for each in frames.calibration] == [(HEIGHT, WIDTH, 3)] * 3
    assert len(frames.holdout) == 1
    with pytest.raises(CalibrationError, match="holds 4 readable frames: more than --frames 4"):
        bag_frames(card, bag, 4, 5)


def test_synthetic_frames_have_ground_truth(tmp_path: Path) -> None:
    """The mean IoU before and after is reported if the model's classes are those of the drive."""
    frames = synthetic_frames(repository_in(tmp_path).find("tiny").card(), 1, 1)
    assert frames.calibration[0].shape == frames.holdout[0].image.shape == (HEIGHT, WIDTH, 3)
    assert frames.holdout[0].truth is not None
    assert not np.array_equal(frames.calibration[0], frames.holdout[0].image)


def test_without_openvino_the_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's installation lacks OpenVINO, and `skylane model quantize` imports it late."""
    for name in [each for each in sys.modules if each.startswith("cloud.engines.openvino.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "modelling.quantization")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"needs openvino, .*skylane\[convert,openvino\]"):
        import_module("modelling.quantization")
