"""ONNX models that keep their weights in other files, from `inspect` to every command that uses the model."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.isolation.engine import IsolationLimits
from cloud.models.loader import ModelLoader
from modelling.conversion.conversion import convert
from modelling.inspection.inspection import InspectionError, inspect, write
from shared.files import tree_sha256
from shared.inference.engine import EngineError
from shared.inference.model import open_local
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from tests.support import onnx_models, tiny_models

onnx: Any = import_module("onnx")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file saved by onnx with a weight of each kind of storage, beside another model and other files."""
    folder = tmp_path / "given"
    folder.mkdir()
    onnx.save(onnx_models.model(), folder / "whole.onnx")
    (folder / "README").write_text("a model")
    path = folder / "net.onnx"
    onnx.save(onnx_models.model(), path, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    return path


def test_a_file_with_external_data_becomes_a_folder_of_the_repository(file: Path, tmp_path: Path) -> None:
    """The folder has the model and its weights, nothing else, and the hash covers both."""
    found = inspect(file)
    assert (found.path, found.manifest.format, found.manifest.file) == (file, "onnx", "net")
    folder = tmp_path / "models" / "foreign"
    write(found, folder)
    assert sorted(path.name for path in (folder / "net").iterdir()) == ["net.onnx", "net.onnx.data"]
    assert found.manifest.sha256 == tree_sha256(folder / "net")
    repository = Repository(tmp_path / "models")
    images = tiny_models.noise(1)
    with (
        ModelLoader(repository).open("foreign") as model,
        ModelLoader(repository, engine="openvino").open("foreign") as other,
        open_local(repository.find("foreign"), Placement(device="cpu")) as local,
    ):
        masks = model.predict(images)
        np.testing.assert_array_equal(local.predict(images), masks)
        assert np.mean(other.predict(images) == masks) > 0.99
    whole = inspect(file.with_name("whole.onnx"))
    assert (whole.manifest.file, whole.manifest.sha256) == ("whole.onnx", tree_sha256(whole.path))
    write(whole, tmp_path / "models" / "whole")
    with ModelLoader(repository).open("whole") as model:
        np.testing.assert_array_equal(model.predict(images), masks)


def test_the_written_folder_can_be_inspected_again(file: Path, tmp_path: Path) -> None:
    """A manifest is rewritten in place with --force, from the folder or from the file in it."""
    folder = tmp_path / "models" / "foreign"
    first = write(inspect(file), folder).read_text()
    for path in (folder / "net", folder / "net" / "net.onnx"):
        assert write(inspect(path), folder, replace=True).read_text() == first


def test_the_case_of_the_suffix_does_not_matter(file: Path) -> None:
    """Windows programs write it in capitals."""
    path = file.rename(file.with_name("NET.ONNX"))
    assert inspect(path).manifest.file == "NET"


def test_an_isolated_engine_reads_the_folder(file: Path, tmp_path: Path) -> None:
    """Its process gets the path of the folder."""
    write(inspect(file), tmp_path / "models" / "foreign")
    images = tiny_models.noise(1)
    repository = Repository(tmp_path / "models")
    with ModelLoader(repository).open("foreign") as model:
        masks = model.predict(images)
    with ModelLoader(repository, isolation=IsolationLimits()).open("foreign") as isolated:
        np.testing.assert_array_equal(isolated.predict(images), masks)


def test_a_converted_model_has_its_weights_inside(file: Path, tmp_path: Path) -> None:
    """Both converters read the folder."""
    write(inspect(file), tmp_path / "models" / "foreign")
    repository = Repository(tmp_path / "models")
    images = tiny_models.noise(2)
    for target, precision in (("onnx", Precision.FP16), ("openvino", Precision.FP32)):
        made = convert(repository, "foreign", target, images, new_name=f"{target}-copy", precision=precision)
        assert made.agreement > 0.98
    assert (repository.root / "onnx-copy" / "model.onnx").is_file()


def test_weights_in_several_files_and_folders_are_copied(file: Path, tmp_path: Path) -> None:
    """The default of some exporters is a file for each tensor."""
    path = file.with_name("many.onnx")
    content = onnx_models.model()
    content.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(5, np.float32), "bias"))
    content.graph.node[0].input.append("bias")
    onnx.save(content, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    content = onnx.load(path, load_external_data=False)
    (path.parent / "sub").mkdir()
    (path.parent / "bias").rename(path.parent / "sub" / "bias")
    content.graph.initializer[1].external_data[0].value = "sub/bias"
    path.write_bytes(content.SerializeToString())
    write(inspect(path), tmp_path / "models" / "foreign")
    folder = tmp_path / "models" / "foreign" / "many"
    assert {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()} == {
        *("many.onnx", "weights", "sub/bias"),
    }
    with ModelLoader(Repository(tmp_path / "models")).open("foreign") as model:
        assert model.predict(tiny_models.noise(1)).any()


def test_weights_that_lead_out_are_refused_and_nothing_is_written(file: Path, tmp_path: Path) -> None:
    """The message names the file that was given, not a temporary copy."""
    data = file.with_name("net.onnx.data")
    data.rename(tmp_path / "net.onnx.data")
    with pytest.raises(EngineError, match=r"given/net\.onnx: keeps weights in 'net\.onnx\.data', which is missing"):
        inspect(file)
    data.symlink_to(tmp_path / "net.onnx.data")
    with pytest.raises(EngineError, match=r"given/net\.onnx: .*a link leads out"):
        inspect(file)
    with pytest.raises(EngineError, match=r"holds weights of an ONNX file: give the .onnx file beside it"):
        inspect(data)


def test_weights_that_change_after_the_inspection_are_not_written(file: Path, tmp_path: Path) -> None:
    """The manifest is that of the model that was run."""
    found = inspect(file)
    file.with_name("net.onnx.data").write_bytes(bytes(onnx_models.WEIGHTS.nbytes))
    with pytest.raises(InspectionError, match="is not what was inspected"):
        write(found, tmp_path / "models" / "foreign")
    assert not (tmp_path / "models" / "foreign" / "model.yaml").exists()


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_weights_beside_a_single_file_are_not_read(file: Path, tmp_path: Path, engine: str) -> None:
    """A manifest by hand whose hash covers the .onnx file alone."""
    folder = tmp_path / "models" / "foreign"
    folder.mkdir(parents=True)
    for path in (file, file.with_name("net.onnx.data")):
        (folder / path.name).write_bytes(path.read_bytes())
    onnx_models.write_manifest(folder, "net.onnx")
    with pytest.raises(EngineError, match=r"keeps weights in net\.onnx\.data, which the hash .* does not cover"):
        ModelLoader(Repository(tmp_path / "models"), engine=engine).open("foreign")
