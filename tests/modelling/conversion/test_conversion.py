import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cloud.models.loader import ModelLoader
from modelling.conversion.conversion import ConvertedModel, convert
from modelling.conversion.derived_model import ConversionError
from modelling.model_cli import model as command
from shared.models.manifest import Precision
from shared.models.repository import Repository
from tests.support import onnx_models, tiny_models


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> ConvertedModel:
    """The conversion of a small segmentation model, a Keras file, to ONNX; tests must not change its repository."""
    root = tmp_path_factory.mktemp("models")
    tiny_models.write(root, "segmentation")
    return _convert(Repository(root), "onnx")


@pytest.fixture
def repository(first: ConvertedModel, tmp_path: Path) -> Repository:
    """A copy of the repository with both models."""
    return Repository(shutil.copytree(first.folder.parent, tmp_path / "models"))


def _convert(repository: Repository, target: str, name: str = "segmentation", **options: object) -> ConvertedModel:
    options = {"new_name": "converted", **options}
    return convert(repository, name, target, tiny_models.noise(2), **options)  # type: ignore[arg-type]  # Any option.


def test_the_manifest_names_the_source_and_the_agreement(first: ConvertedModel) -> None:
    """`engine: auto` and `skylane model bench` read both; preprocessing and postprocessing are part of the file."""
    repository = Repository(first.folder.parent)
    manifest = repository.find("converted").manifest
    source = repository.find("segmentation").manifest
    assert manifest.converted_from is not None
    assert (manifest.converted_from.model, manifest.converted_from.sha256) == ("segmentation", source.sha256)
    assert manifest.agreement == first.agreement >= manifest.agreement_floor
    assert first.holds_floor
    assert (manifest.labels, manifest.input.resize, manifest.batching) == (
        source.labels,
        source.input.resize,
        source.batching,
    )
    assert (manifest.input.dtype, manifest.input.scale, manifest.input.mean) == ("uint8", 1.0, None)
    assert manifest.heads["mask"].kind == "class_ids"


def test_a_second_conversion_is_compared_with_the_first_source(repository: Repository) -> None:
    """Small losses add up over several conversions."""
    again = _convert(repository, "openvino", "converted", new_name="converted-again")
    assert again.reference == "segmentation"
    assert again.manifest.converted_from == repository.find("converted").manifest.converted_from


def test_fp16_keeps_nearly_all_labels(repository: Repository) -> None:
    """The manifest has the precision and the measured agreement."""
    for target, source in (("onnx", "segmentation"), ("tflite", "segmentation"), ("openvino", "converted")):
        converted = _convert(repository, target, source, new_name=f"half-{target}", precision=Precision.FP16)
        assert converted.agreement > 0.98
        assert repository.find(f"half-{target}").manifest.precision is Precision.FP16


def test_a_third_party_onnx_file_is_converted_with_its_scaling(tmp_path: Path) -> None:
    """The scaling of its manifest becomes part of the OpenVINO file."""
    onnx_models.add(tmp_path, onnx_models.model())
    repository = Repository(tmp_path)
    _convert(repository, "openvino", "foreign")
    with ModelLoader(repository).open("converted") as model:
        images = tiny_models.noise(1)
        np.testing.assert_array_equal(model.predict(images), onnx_models.masks(images))


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
        ("segmentation", "onnx", {"new_name": "segmentation"}, "exists already: choose another --name"),
        ("converted", "onnx", {"new_name": "again"}, "converted already has this format"),
    ],
)
def test_an_impossible_conversion_is_refused_before_any_work(
    repository: Repository, name: str, target: str, options: dict[str, object], problem: str
) -> None:
    """A conversion takes a minute; the repository stays unchanged."""
    before = sorted(repository.root.rglob("*"))
    with pytest.raises(ConversionError) as caught:
        _convert(repository, target, name, **options)
    assert problem in str(caught.value)
    assert sorted(repository.root.rglob("*")) == before


def test_a_failed_conversion_leaves_the_repository_unchanged(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete model must not be served, and an existing one must stay."""
    before = {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()}

    def fail(*_: object) -> float:
        raise ConversionError("onnx", "simulated failure")

    monkeypatch.setattr("modelling.conversion.conversion.agreement", fail)
    with pytest.raises(ConversionError, match="simulated failure"):
        _convert(repository, "onnx", replace=True)
    assert {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()} == before


def test_the_command_prints_the_agreement_and_replaces_only_with_force(repository: Repository) -> None:
    """The agreement shows whether the new model can replace the original."""
    (repository.root / "converted").rename(repository.root / "segmentation-onnx")
    arguments = ["convert", "segmentation", "--to", "onnx", "--models", str(repository.root), "--frames", "2"]
    with pytest.raises(ConversionError, match="exists already"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    result = CliRunner().invoke(command, [*arguments, "--force"], catch_exceptions=False)
    assert "labels equal to segmentation's: " in result.output
    assert "on 2 frames" in result.output
    assert repository.names() == ("segmentation", "segmentation-onnx")


@pytest.mark.parametrize(
    ("target", "precision", "name"),
    [("saved_model", "fp32", "segmentation-saved-model"), ("onnx", "fp16", "segmentation-onnx-fp16")],
)
def test_a_new_model_is_named_after_its_format_and_precision(
    repository: Repository, target: str, precision: str, name: str
) -> None:
    """Models of several precisions stand side by side; that of fp32 is named after its format alone."""
    (repository.root / name).mkdir()
    arguments = ["convert", "segmentation", "--to", target, "--precision", precision, "--models", str(repository.root)]
    with pytest.raises(ConversionError, match=f"{name} exists already"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
