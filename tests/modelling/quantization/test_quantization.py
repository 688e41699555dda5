import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cloud.engines.engine import Placement, Precision
from cloud.engines.tensorflow.library import tf
from cloud.models.repository import Repository
from modelling.quantization.calibration_frames import CalibrationError, CalibrationFrames, Judged, drawn, recorded
from modelling.quantization.quantization import QuantisationError, quantise
from rosbag_tools.drive.recording import DrivePlan, record
from shared.hashing import tree_sha256

HEIGHT, WIDTH, CLASSES = 24, 32, 5

_SILENT = """
import socket, sys
from pathlib import Path

def refused(*given):
    print("CONNECTED", given[1:], flush=True)
    raise OSError("no network here")

socket.socket.connect = refused
socket.getaddrinfo = refused
from tests.modelling.quantization.test_quantization import repository_in, random_frames
from modelling.quantization.quantization import quantise
from cloud.engines.engine import Precision
quantise(repository_in(Path(sys.argv[1])), "tiny", Precision.INT8, random_frames(), called="tiny-int8")
"""


def repository_in(root: Path) -> Repository:
    """With `tiny`: two convolutions that score five classes, as a frozen graph; its manifest scales."""
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
        "labels": [{"name": f"class-{place}", "colour": [place, 0, 0]} for place in range(CLASSES)],
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return Repository(root)


def random_frames() -> CalibrationFrames:
    """Six pictures of noise to calibrate with, and four others."""
    pictures = list(np.random.default_rng(1).integers(0, 256, (10, HEIGHT, WIDTH, 3), np.uint8))
    return CalibrationFrames(pictures[:6], [Judged(picture) for picture in pictures[6:]])


@pytest.mark.parametrize(("precision", "floor"), [(Precision.FP16, 0.99), (Precision.INT8, 0.9)])
def test_a_model_in_fewer_bits_is_served_like_any_other(tmp_path: Path, precision: Precision, floor: float) -> None:
    """It must load by its manifest alone, say what it is made from, and answer nearly the same."""
    repository, frames = repository_in(tmp_path), random_frames()
    done = quantise(repository, "tiny", precision, frames, called="smaller")
    manifest = repository.manifest("smaller")
    assert manifest.precision is precision
    assert manifest.converted_from is not None
    assert manifest.converted_from.sha256 == repository.manifest("tiny").sha256
    assert manifest.agreement == done.agreement
    assert floor < done.agreement <= 1
    pictures = np.stack([each.picture for each in frames.judged])
    with repository.load("tiny", Placement(device="cpu")) as tiny, repository.load("smaller") as smaller:
        assert smaller.engine_name == "openvino"
        assert np.mean(tiny.predict(pictures) == smaller.predict(pictures)) == pytest.approx(done.agreement)


def test_int8_counts_convolutions_in_eight_bits(tmp_path: Path) -> None:
    """A file that says int8 and holds floats would be measured as if it were."""
    quantise(repository_in(tmp_path), "tiny", Precision.INT8, random_frames(), called="small")
    written = (tmp_path / "small" / "ir" / "model.xml").read_text()
    assert 'type="FakeQuantize"' in written
    assert 'element_type="i8"' in written


def test_nobody_is_told_that_a_model_was_quantised(tmp_path: Path) -> None:
    """NNCF and OpenVINO's tools report their use to their makers unless they are kept from it."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    (tmp_path / "models").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", _SILENT, str(tmp_path / "models")], capture_output=True, text=True, check=False, env=kept
    )
    assert ran.returncode == 0, ran.stderr
    assert "CONNECTED" not in ran.stdout
    assert not (home / "intel").exists()  # Where they keep the number that a user is told by.
    assert (tmp_path / "models" / "tiny-int8" / "model.yaml").exists()


def test_a_model_is_not_overwritten_unasked(tmp_path: Path) -> None:
    """Somebody may be serving it."""
    repository = repository_in(tmp_path)
    with pytest.raises(QuantisationError, match="is there already: choose another --name, or give --force"):
        quantise(repository, "tiny", Precision.FP16, random_frames(), called="tiny")


def test_a_quantised_model_is_not_quantised_again(tmp_path: Path) -> None:
    """Its agreement would be told against what had lost already."""
    repository = repository_in(tmp_path)
    quantise(repository, "tiny", Precision.FP16, random_frames(), called="half")
    with pytest.raises(QuantisationError, match="holds fp16 numbers already"):
        quantise(repository, "half", Precision.INT8, random_frames(), called="less")


def test_frames_of_a_bag_are_split_into_calibration_and_judged(tmp_path: Path) -> None:
    """What was calibrated with cannot show what was lost."""
    repository = repository_in(tmp_path)
    card: Any = repository.card("tiny")
    bag = tmp_path / "bag"
    record(bag, DrivePlan(seed=3, frames=4, width=64, height=48))
    frames = recorded(card, bag, 3, 5)
    assert [each.shape for each in frames.calibration] == [(HEIGHT, WIDTH, 3)] * 3
    assert len(frames.judged) == 1
    with pytest.raises(CalibrationError, match="holds 4 frames that can be read: more than --frames 4"):
        recorded(card, bag, 4, 5)


def test_drawn_frames_bring_their_truth(tmp_path: Path) -> None:
    """Mean IoU before and after is told where the model's classes are the drive's."""
    frames = drawn(repository_in(tmp_path).card("tiny"), 1, 1)
    assert frames.calibration[0].shape == frames.judged[0].picture.shape == (HEIGHT, WIDTH, 3)
    assert frames.judged[0].truth is not None
    assert not np.array_equal(frames.calibration[0], frames.judged[0].picture)
