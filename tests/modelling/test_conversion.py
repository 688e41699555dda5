from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cloud.engines.engine import Precision
from cloud.models.repository import Repository
from modelling.conversion.conversion import Converted, convert
from modelling.conversion.errors import ConversionError
from modelling.model_cli import model as command
from tests.support import onnx_models, tiny_models


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One with a small segmentation as a Keras file."""
    tiny_models.write(tmp_path, "segmentation")
    return Repository(tmp_path)


def _convert(repository: Repository, target: str, name: str = "segmentation", **options: object) -> Converted:
    options = {"called": "made", **options}
    return convert(repository, name, target, tiny_models.noise(2), **options)  # type: ignore[arg-type]  # Any of its options.


def test_a_converted_model_says_where_it_comes_from_and_what_it_agrees_with(repository: Repository) -> None:
    """`engine: auto` and `model bench` find it by this, and believe it for this."""
    made = _convert(repository, "onnx")
    manifest = repository.manifest("made")
    source = repository.manifest("segmentation")
    assert manifest.converted_from is not None
    assert (manifest.converted_from.model, manifest.converted_from.sha256) == ("segmentation", source.sha256)
    assert manifest.agreement == made.agreement >= manifest.agreement_floor
    assert made.holds_floor
    assert (manifest.labels, manifest.input.resize, manifest.batching) == (
        source.labels,
        source.input.resize,
        source.batching,
    )
    assert (manifest.input.dtype, manifest.input.scale, manifest.input.mean) == ("uint8", 1.0, None)
    assert manifest.heads["mask"].kind == "class_ids"


def test_what_is_made_of_a_converted_model_is_compared_with_the_first(repository: Repository) -> None:
    """Small losses add up: each step alone would look sound."""
    _convert(repository, "onnx")
    made = _convert(repository, "openvino", "made", called="made-twice")
    assert made.reference == "segmentation"
    assert made.manifest.converted_from == repository.manifest("made").converted_from


def test_half_the_bytes_and_nearly_the_same_labels(repository: Repository) -> None:
    """fp16 is worth its name only if the file shrinks; what it costs is told."""
    for target in ("onnx", "tflite", "openvino"):
        source = "segmentation"
        if target == "openvino":
            _convert(repository, "frozen_graph", called="graph")
            source = "graph"
        made = _convert(repository, target, source, called=f"half-{target}", precision=Precision.FP16)
        assert made.agreement > 0.98
        assert repository.manifest(f"half-{target}").precision is Precision.FP16


def test_a_foreign_onnx_file_keeps_its_scaling_in_the_manifest(tmp_path: Path) -> None:
    """Its file is not rewritten, so what is done before and after it stays as it was."""
    onnx_models.add(tmp_path, onnx_models.model())
    repository = Repository(tmp_path)
    _convert(repository, "openvino", "foreign")
    with repository.load("made") as model:
        np.testing.assert_array_equal(model.predict(tiny_models.noise(1)), onnx_models.masks(tiny_models.noise(1)))


@pytest.mark.parametrize(
    ("name", "target", "options", "problem"),
    [
        ("segmentation", "openvino", {}, "is keras, and keras can be made into onnx, tflite, saved_model"),
        (
            "segmentation",
            "saved_model",
            {"precision": Precision.FP16},
            "fp16 numbers are written as onnx, tflite, openvino",
        ),
        ("segmentation", "onnx", {"called": "segmentation"}, "is there already: choose another --name"),
        ("made", "onnx", {"called": "again"}, "made is that already"),
    ],
)
def test_what_cannot_be_done_is_told_before_any_work(
    repository: Repository, name: str, target: str, options: dict[str, object], problem: str
) -> None:
    """A conversion takes a minute: a mistake must not."""
    if name == "made":
        _convert(repository, "onnx")
    before = sorted(repository.root.rglob("*"))
    with pytest.raises(ConversionError) as caught:
        _convert(repository, target, name, **options)
    assert problem in str(caught.value)
    assert sorted(repository.root.rglob("*")) == before


def test_a_conversion_that_fails_leaves_the_repository_as_it_was(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-written model would be served, or be in the way; the one that it was to replace must stay."""
    _convert(repository, "onnx")
    before = {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()}

    def fail(*_: object) -> float:
        raise ConversionError("onnx", "the power went")

    monkeypatch.setattr("modelling.conversion.conversion.agreement", fail)
    with pytest.raises(ConversionError, match="the power went"):
        _convert(repository, "onnx", replace=True)
    assert {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()} == before


def test_the_command_tells_the_agreement_and_replaces_only_when_told(repository: Repository) -> None:
    """The one figure that decides whether the file may stand for the model."""
    arguments = ["convert", "segmentation", "--to", "onnx", "--models", str(repository.root), "--frames", "2"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "labels as segmentation's: " in result.output
    assert "on 2 frames" in result.output
    with pytest.raises(ConversionError, match="is there already"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert CliRunner().invoke(command, [*arguments, "--force"], catch_exceptions=False).exit_code == 0
    assert repository.names() == ("segmentation", "segmentation-onnx")
