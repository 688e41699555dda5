import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rosbag_tools.drive.recording import DrivePlan, record
from shared.errors import SkylaneError
from tests.modelling.bright_models import add, run


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive with true labels."""
    path = tmp_path_factory.mktemp("bags") / "drive"
    record(path, DrivePlan(seed=1, frames=3, width=120, height=76))
    return path


def test_bench_compares_speed_and_labels_with_the_reference(tmp_path: Path, drive: Path) -> None:
    """A converted model with other labels has a lower agreement."""
    source = add(tmp_path, "bright")
    add(tmp_path, "brighter", 140.0, converted_from={"model": "bright", "sha256": source})
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 3, "--rounds", 2)
    result = json.loads(run("bench", *arguments, "--engine", "tensorflow", "--batch", "1,2", "--json").stdout)
    assert result["reference"] == "tensorflow fp32"
    first = result["rows"][0]
    assert (first["what"], first["threads"], first["batch"]) == ("tensorflow fp32", 0, 1)
    assert (first["ratio"], first["agreement"]) == (1.0, 1.0)
    rows = {(row["what"], row["batch"]): row for row in result["rows"]}
    assert ("tensorflow fp32", 2) in rows
    assert rows["tensorflow fp32 of brighter", 1]["agreement"] < 1.0
    assert all(row["runs"] == 2 for row in result["rows"])
    table = run("bench", *arguments, "--engine", "tensorflow", "--engine", "torchscript").stdout
    assert "brighter" in table
    assert "tensorflow 2." in table
    assert "not run: torchscript: reads no file of bright: see `skylane model convert`" in table


def test_bench_lists_engines_that_are_not_installed(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output has the reason and the pip command."""
    for name in [name for name in sys.modules if name.startswith("cloud.engines.openvino.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    add(tmp_path, "bright")
    ran = run("bench", "bright", "--models", tmp_path, "--bag", drive, "--frames", 1, "--rounds", 1)
    assert "not run: openvino fp32" in ran.stdout
    assert "pip install 'skylane[openvino]'" in ran.stdout


@pytest.mark.parametrize("option", ["--batch=0", "--batch=x", "--threads=1,,2", "--threads=-1"])
def test_invalid_numbers_are_usage_errors(tmp_path: Path, option: str) -> None:
    """The exit code is 2."""
    assert run("bench", "bright", "--models", tmp_path, option).exit_code == 2


def test_an_unknown_model_is_refused_before_a_drive_is_rendered(tmp_path: Path) -> None:
    """Rendering takes seconds."""
    add(tmp_path, "bright")
    with pytest.raises(SkylaneError, match="no model 'brihgt': did you mean bright"):
        run("bench", "brihgt", "--models", tmp_path)


def test_bench_evaluates_a_detector_with_the_drives_boxes(drive: Path) -> None:
    """The result has an accuracy, or the reason why there is none."""
    arguments = ("road-objects", "--models", "models", "--bag", drive, "--frames", 2, "--rounds", 1)
    result = json.loads(run("bench", *arguments, "--engine", "tensorflow", "--json").stdout)
    first = result["rows"][0]
    assert first["accuracy"] is not None or "contain nothing that" in result["unjudged"]
    assert "off by" in run("bench", *arguments, "--engine", "tensorflow").stdout


def test_labels_are_compared_without_batching(tmp_path: Path, drive: Path) -> None:
    """The first row is the reference with a batch size of 1."""
    add(tmp_path, "bright")
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 2, "--rounds", 1, "--engine", "tensorflow")
    result = json.loads(run("bench", *arguments, "--batch", 3, "--json").stdout)
    assert [row["batch"] for row in result["rows"]] == [1, *[3] * (len(result["rows"]) - 1)]
    assert all(row["agreement"] == 1.0 for row in result["rows"] if row["precision"] == "fp32")
    assert np.isfinite([row["ratio"] for row in result["rows"]]).all()
