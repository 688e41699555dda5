import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from cloud.engines.tensorflow.library import tf
from modelling.model_cli import model
from rosbag_tools.drive.recording import DrivePlan, record
from shared.errors import SkylaneError
from shared.hashing import tree_sha256

_HEIGHT, _WIDTH = 38, 60


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(model, [str(argument) for argument in arguments], catch_exceptions=False)


def _add(root: Path, name: str, threshold: float = 100.0, *, noisy: bool = False, **changes: Any) -> str:
    """A model that calls pixels brighter than `threshold` class 1; returns its file's hash."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (None, _HEIGHT, _WIDTH, 3), "input")
        brightness = tf.cast(images[..., 0], tf.float32)
        brightness += 100 * tf.random.uniform(tf.shape(brightness)) if noisy else 0.0
        tf.cast(brightness > threshold, tf.uint8, name="prediction")
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())
    manifest = {
        "format": "frozen_graph",
        "file": "model.pb",
        "sha256": tree_sha256(folder / "model.pb"),
        "input": {"tensor": "input:0", "height": _HEIGHT, "width": _WIDTH},
        "output": {"tensor": "prediction:0", "kind": "class_ids"},
        "labels": [{"name": "dark", "colour": [0, 0, 0]}, {"name": "light", "colour": [0, 255, 0]}],
        **changes,
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest))
    return str(manifest["sha256"])


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drive with true labels."""
    path = tmp_path_factory.mktemp("bags") / "drive"
    record(path, DrivePlan(seed=1, frames=3, width=120, height=76))
    return path


def test_bench_sets_every_way_beside_the_reference(tmp_path: Path, drive: Path) -> None:
    """Speed without the labels that it cost would sell a worse model as a faster one."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "brighter", 140.0, converted_from={"model": "bright", "sha256": source})
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 3, "--rounds", 2)
    result = json.loads(_run("bench", *arguments, "--engine", "tensorflow", "--batch", "1,2", "--json").stdout)
    assert result["reference"] == "tensorflow fp32"
    first = result["rows"][0]
    assert (first["what"], first["threads"], first["batch"]) == ("tensorflow fp32", 0, 1)
    assert (first["ratio"], first["agreement"]) == (1.0, 1.0)
    by_way = {(row["what"], row["batch"]): row for row in result["rows"]}
    assert ("tensorflow fp32", 2) in by_way
    assert by_way["tensorflow fp32 of brighter", 1]["agreement"] < 1.0
    assert all(row["runs"] == 2 for row in result["rows"])
    table = _run("bench", *arguments, "--engine", "tensorflow").stdout
    assert "brighter" in table
    assert "tensorflow 2." in table


def test_bench_says_what_it_could_not_run(tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing engine must not look like one that was slow."""
    for name in [name for name in sys.modules if name.startswith("cloud.engines.openvino.engine")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    _add(tmp_path, "bright")
    ran = _run("bench", "bright", "--models", tmp_path, "--bag", drive, "--frames", 1, "--rounds", 1)
    assert "not run: openvino fp32" in ran.stdout
    assert "pip install 'skylane[openvino]'" in ran.stdout


@pytest.mark.parametrize("given", ["--batch=0", "--batch=x", "--threads=1,,2", "--threads=-1"])
def test_numbers_that_are_none_are_bad_usage(tmp_path: Path, given: str) -> None:
    """Rather than a run of minutes that measures something else."""
    assert _run("bench", "bright", "--models", tmp_path, given).exit_code == 2


def test_a_model_that_is_not_there_is_told_before_a_drive_is_rendered(tmp_path: Path) -> None:
    """Rendering takes seconds, and a typo is a typo."""
    _add(tmp_path, "bright")
    with pytest.raises(SkylaneError, match="no model 'brihgt': did you mean bright"):
        _run("bench", "brihgt", "--models", tmp_path)


def test_verify_passes_a_whole_repository(tmp_path: Path) -> None:
    """A conversion is held against its source."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "copy", converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    ran = _run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 0
    rows = {row["name"]: row for row in json.loads(ran.stdout)}
    assert rows["bright"]["checks"] == ["manifest", "hash", "tensors", "steady"]
    assert (rows["copy"]["agreement"], rows["copy"]["checks"][-1]) == (1.0, "agreement")


def test_verify_names_what_is_wrong_with_each_and_fails(tmp_path: Path) -> None:
    """The first failure of one must not hide the other models."""
    source = _add(tmp_path, "bright")
    _add(tmp_path, "worse", 160.0, converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    _add(tmp_path, "orphan", converted_from={"model": "gone", "sha256": "1" * 64})
    _add(tmp_path, "noisy", noisy=True)
    _add(tmp_path, "changed")
    (tmp_path / "changed" / "model.pb").write_bytes(b"another")
    _add(tmp_path, "wrong", input={"tensor": "inptu:0", "height": _HEIGHT, "width": _WIDTH})
    ran = _run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 1
    failures = {row["name"]: row["failure"] for row in json.loads(ran.stdout)}
    assert failures["bright"] is None
    assert "its floor is 99.9 %" in failures["worse"]
    assert "the model it was converted from (gone, 111111111111…) is not here" in failures["orphan"]
    assert "dropout or noise is on" in failures["noisy"]
    assert "it was changed or is incomplete" in failures["changed"]
    assert "no input tensor 'inptu:0': did you mean input" in failures["wrong"]
    assert _run("verify", "bright", "--models", tmp_path).exit_code == 0
    assert "FAILED" in _run("verify", "worse", "--models", tmp_path).stdout


def test_one_broken_manifest_hides_no_other_model(tmp_path: Path) -> None:
    """A repository is verified because something in it may be broken."""
    _add(tmp_path, "bright")
    (tmp_path / "awry").mkdir()
    (tmp_path / "awry" / "model.yaml").write_text("fromat: frozen_graph")
    ran = _run("verify", "--models", tmp_path, "--json")
    failures = {row["name"]: row["failure"] for row in json.loads(ran.stdout)}
    assert ran.exit_code == 1
    assert failures["bright"] is None
    assert "did you mean format" in failures["awry"]


def test_verify_finds_a_class_without_a_name(tmp_path: Path) -> None:
    """The graph takes the arg max itself: nothing but a run tells."""
    _add(tmp_path, "bright", labels=[{"name": "dark", "colour": [0, 0, 0]}])
    (found,) = json.loads(_run("verify", "--models", tmp_path, "--json").stdout)
    assert "answers class 1, but names only 1" in found["failure"]


def test_bench_says_that_an_engine_reads_none_of_the_files(tmp_path: Path, drive: Path) -> None:
    """A table of the reference alone would look like a measurement."""
    _add(tmp_path, "bright")
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 1, "--rounds", 1)
    ran = _run("bench", *arguments, "--engine", "torchscript")
    assert "not run: torchscript: reads no file of bright: see `skylane model convert`" in ran.stdout


def test_a_detector_is_judged_by_the_drives_boxes(drive: Path) -> None:
    """An engine that moves boxes a little loses labels, but perhaps no object."""
    arguments = ("road-objects", "--models", "models", "--bag", drive, "--frames", 2, "--rounds", 1)
    result = json.loads(_run("bench", *arguments, "--engine", "tensorflow", "--json").stdout)
    first = result["rows"][0]
    assert first["accuracy"] is not None or "nothing in these frames" in result["unjudged"]
    heading = _run("bench", *arguments, "--engine", "tensorflow").stdout
    assert "off by" in heading


def test_labels_are_compared_unbatched_and_unspoiled(tmp_path: Path, drive: Path) -> None:
    """The reference in the table is the very first row, held against itself."""
    _add(tmp_path, "bright")
    arguments = ("bright", "--models", tmp_path, "--bag", drive, "--frames", 2, "--rounds", 1, "--engine", "tensorflow")
    result = json.loads(_run("bench", *arguments, "--batch", 3, "--json").stdout)
    assert [row["batch"] for row in result["rows"]] == [1, *[3] * (len(result["rows"]) - 1)]
    assert all(row["agreement"] == 1.0 for row in result["rows"] if row["precision"] == "fp32")
    assert np.isfinite([row["ratio"] for row in result["rows"]]).all()
