"""The tuning file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shared.config import ConfigError
from shared.package_data import shipped
from shared.reuse.gate import GateSettings
from shared.reuse.tuning import (
    CascadeThresholds,
    Tuning,
    TuningError,
    cascade_thresholds,
    read_tuning,
    shipped_tuning,
    write_tuning,
)

SOURCE = Path("tuning.yaml")
TUNED: dict[str, Any] = {
    "reference": {"name": "car-reference", "sha256": "a" * 64},
    "gate": {"mse": 2.5, "reuse_frames": 50, "reuse_ms": 5000.0},
    "local": {"name": "car-tiny", "sha256": "b" * 64, "temperature": 1.4, "c_low": 0.1, "c_high": 0.9},
    "measured": {
        "drives": ["fixed-1", "fixed-2"],
        "frames": 1000,
        "metric": "accuracy",
        "reference_accuracy": 97.5,
        "accuracy": 97.0,
        "loss": 0.5,
        "loss_bound": 0.9,
        "allowed_loss": 1.0,
        "method": "mse",
        "sent": 0.1,
        "reused": 0.6,
        "answered_locally": 0.3,
        "reliability_unit": "frames",
        "calibration_error": 0.02,
        "calibration_error_uncalibrated": 0.08,
        "reliability": [
            {"low": 0.0, "high": 0.5, "count": 0},
            {"low": 0.5, "high": 1.0, "count": 9, "confidence": 0.9, "accuracy": 0.88},
        ],
    },
}


def _tuned(**changes: Any) -> Tuning:
    return Tuning.model_validate(TUNED | changes)


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    """The header is a comment."""
    path = tmp_path / "tuning" / "car-reference.yaml"
    write_tuning(path, _tuned(), "Made by a test.\n\nTwo drives.")
    assert path.read_text().startswith("# Made by a test.\n#\n# Two drives.\nreference:")
    assert read_tuning(path) == _tuned()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """It names the option."""
    (tmp_path / "file").touch()
    with pytest.raises(TuningError, match="--out"):
        write_tuning(tmp_path / "file" / "tuning.yaml", _tuned())


@pytest.mark.parametrize(
    ("section", "changes", "problem"),
    [
        ("gate", {"mse": -1}, "gate.mse"),
        ("gate", {"pixels": 101}, "gate.pixels"),
        ("gate", {"reuse_frames": 0}, "gate.reuse_frames"),
        ("gate", {"msd": 3}, "gate.msd: unknown key: did you mean mse?"),
        ("local", {"temperature": 0}, "local.temperature"),
        ("local", {"c_low": 0.9, "c_high": 0.1}, "0 <= c_low < c_high <= 1"),
        ("local", {"sha256": "short"}, "local.sha256"),
        ("measured", {"sent": 1.5}, "measured.sent"),
    ],
)
def test_an_invalid_value_is_an_error(tmp_path: Path, section: str, changes: dict[str, Any], problem: str) -> None:
    """It names the key."""
    path = tmp_path / "tuning.yaml"
    document = TUNED | {section: TUNED[section] | changes}
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=re.escape(problem)):
        read_tuning(path)


def test_the_numbers_are_for_the_reference_model_only() -> None:
    """Another model, or another file of it, is an error that names the file and the remedy."""
    tuned = _tuned()
    tuned.check_reference("car-reference", "a" * 64, SOURCE)
    for name, sha256, problem in (("road-small", "a" * 64, "car-reference, not for road-small"),
                                  ("car-reference", "c" * 64, "another file of car-reference")):  # fmt: skip
        with pytest.raises(TuningError, match=f"tuning.yaml .*{problem}.*tune-gate"):
            tuned.check_reference(name, sha256, SOURCE)


def test_the_numbers_are_for_the_local_model_only() -> None:
    """The checks are those of the reference model."""
    local = _tuned().local_for("car-tiny", "b" * 64, SOURCE)
    assert (local.temperature, cascade_thresholds(local)) == (1.4, CascadeThresholds(0.1, 0.9))
    with pytest.raises(TuningError, match="car-tiny, not for road-tiny"):
        _tuned().local_for("road-tiny", "b" * 64, SOURCE)
    with pytest.raises(TuningError, match="another file of car-tiny"):
        _tuned().local_for("car-tiny", "c" * 64, SOURCE)
    with pytest.raises(TuningError, match=r"no numbers for a local model.*--local-model car-tiny"):
        _tuned(local=None).local_for("car-tiny", "b" * 64, SOURCE)


def test_a_gate_uses_the_threshold_of_its_method() -> None:
    """A method that was not tuned is an error."""
    assert _tuned().gate_settings("mse") == GateSettings("mse", 2.5, 50, 5000.0)
    with pytest.raises(TuningError, match=r"no threshold of pixels.*--gate-threshold"):
        _tuned().gate_settings("pixels")
    with pytest.raises(TuningError, match="no threshold of mse"):
        _tuned(gate=None).gate_settings("mse")


def test_shipped_files_are_valid() -> None:
    """Each is called after its reference model."""
    for path in (shipped("configs") / "tuning").glob("*.yaml"):
        assert read_tuning(path).reference.name == path.stem
        assert shipped_tuning(path.stem) == path
    assert shipped_tuning("no-such-model") is None
