import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bench.baselines.noscope_comparison import LOCAL as LOCAL_ORIGIN
from bench.baselines.noscope_comparison import REFERENCE as REFERENCE_ORIGIN
from bench.baselines.noscope_comparison import REUSED, NoScopePlan, Reproduction, read_drive
from bench.harness import BenchRun
from ops.processes.child import BenchError
from rosbag_tools.drive.recording import DrivePlan, record
from rosbag_tools.drive.scene import PRESENCE
from shared.files import tree_sha256
from shared.models.repository import Repository
from shared.reuse.tuning import read_tuning

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

REFERENCE, LOCAL = "bright", "bright-tiny"
_SIZES = {REFERENCE: (40, 60), LOCAL: (20, 30)}
_MIDDLE, _STEEPNESS = 110.0, 0.05  # Grey level of probability 0.5, and logits per grey level.
ROOT = Path(__file__).parents[3]
FRAMES = 12


@pytest.fixture(scope="session")
def bright_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a repository whose models say `vehicle` for bright images; the local one has a quarter of the pixels."""
    root = tmp_path_factory.mktemp("bright-models")
    for name, (height, width) in _SIZES.items():
        folder = root / name
        folder.mkdir()
        (folder / "model.onnx").write_bytes(_brightness(height, width).SerializeToString())
        manifest = {
            "format": "onnx",
            "file": "model.onnx",
            "sha256": tree_sha256(folder / "model.onnx"),
            "task": "classification",
            "input": {"tensor": "image", "dtype": "float32", "height": height, "width": width},
            "output": {"tensor": "scores", "kind": "logits"},
            "labels": [{"name": label, "colour": [0, 0, number]} for number, label in enumerate(PRESENCE)],
        }
        (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return root


@pytest.fixture(scope="session")
def bright_tuning(bright_models: Path) -> Path:
    """Returns a tuning file for both models."""
    hashes = {name: Repository(bright_models).find(name).manifest.sha256 for name in _SIZES}
    tuning = {
        "reference": {"name": REFERENCE, "sha256": hashes[REFERENCE]},
        "gate": {"mse": 2.0, "reuse_frames": 3, "reuse_ms": 1000.0},
        "local": {"name": LOCAL, "sha256": hashes[LOCAL], "temperature": 1.0, "c_low": 0.4, "c_high": 0.6},
    }
    file = bright_models.parent / "bright-tuning.yaml"
    file.write_text(yaml.safe_dump(tuning))
    return file


@pytest.fixture(scope="module")
def fixed_bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive of a fixed camera."""
    path = tmp_path_factory.mktemp("bags") / "fixed"
    record(path, DrivePlan(seed=920_001, frames=FRAMES, width=120, height=80, static_camera=True))
    return path


def _servers(run: BenchRun, models: Path, tuning: Path, servers: int, **changed: float) -> Reproduction:
    """Starts the reproduction with the thresholds of a file, of which the detector's may be changed."""
    found = read_tuning(tuning)
    assert found.gate is not None
    found = found.model_copy(update={"gate": found.gate.model_copy(update=changed)})
    plan = NoScopePlan(models=models, model=REFERENCE, local_model=LOCAL, inference_ms=1.0, frames=FRAMES)
    return Reproduction(run, plan, found, (), servers)


def test_the_undistributed_system_asks_the_reference_about_every_frame(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path
) -> None:
    """The speed-up is relative to this system."""
    drive = read_drive(fixed_bag, FRAMES)
    with BenchRun() as run:
        servers = _servers(run, bright_models, bright_tuning, 1)
        found = servers.play(drive, 0, servers=1, reuse=False)
    assert found.origins == (REFERENCE_ORIGIN,) * FRAMES
    assert len(found.answers) == FRAMES
    assert found.parts_ms["compute_ms"] > 0


def test_a_frame_is_reused_only_for_the_longest_reuse(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path
) -> None:
    """With a threshold that all frames meet, every fourth frame gets an answer of its own, which the next three reuse."""
    drive = read_drive(fixed_bag, FRAMES)
    with BenchRun() as run:
        servers = _servers(run, bright_models, bright_tuning, 2, mse=65_025.0)
        found = servers.play(drive, 0, servers=2, reuse=True)
    assert [origin == REUSED for origin in found.origins] == [False, True, True, True] * (FRAMES // 4)
    assert set(found.origins) <= {REUSED, LOCAL_ORIGIN, REFERENCE_ORIGIN}
    for start in range(0, FRAMES, 4):
        assert len(set(found.answers[start : start + 4])) == 1


def test_a_bag_that_is_too_short_is_reported(fixed_bag: Path) -> None:
    """The message names the number of frames that can be played."""
    with pytest.raises(BenchError, match=f"--frames {FRAMES}"):
        read_drive(fixed_bag, FRAMES + 1)


@pytest.mark.mosquitto
def test_the_comparison_runs_to_its_end(
    fixed_bag: Path, bright_models: Path, bright_tuning: Path, tmp_path: Path
) -> None:
    """All three systems answer all frames of the same bag, and the result is valid JSON."""
    flags = {
        "--bag": fixed_bag,
        "--models": bright_models,
        "--model": REFERENCE,
        "--local-model": LOCAL,
        "--tuning": bright_tuning,
        "--frames": FRAMES,
        "--servers": 2,
        "--inference-ms": 5,
        "--json": tmp_path / "noscope.json",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    done = subprocess.run(
        [sys.executable, "-m", "bench", "baselines", "noscope", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "By drive" in done.stdout
    result = json.loads((tmp_path / "noscope.json").read_text(encoding="utf-8"))
    undistributed, *others = result["systems"].values()
    assert undistributed["by_drive"][0]["requests"] == FRAMES
    assert len(others) == 2
    for system in others:
        shares = (system["by_drive"][0][f"{origin}_share"] for origin in ("sent", "reused", "local"))
        assert sum(shares) == pytest.approx(1)
    assert result["drives"][0]["bag"] == fixed_bag.name


def _brightness(height: int, width: int) -> Any:
    """Returns a network of the mean of an image, planar float32 N×3×height×width, to two logits."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.zeros((3, 2), np.float32)
    weights[:, 1] = _STEEPNESS / 3
    constants = {"weights": weights, "bias": np.array([0, -_STEEPNESS * _MIDDLE], np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["means"]),
            helper.make_node("Flatten", ["means"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"]),
        ],
        "brightness",
        [helper.make_tensor_value_info("image", float32, ["batch", 3, height, width])],
        [helper.make_tensor_value_info("scores", float32, ["batch", 2])],
        [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
