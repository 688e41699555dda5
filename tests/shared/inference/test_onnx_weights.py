"""External data of ONNX files: what is found, and what is refused."""

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.models.loader import ModelLoader
from shared.errors import SkylaneError
from shared.inference.engine import EngineError
from shared.inference.onnx_weights import checked_onnx_file, weight_files
from shared.models.repository import Repository
from tests.support import onnx_models
from tests.support.onnx_models import WEIGHTS

onnx: Any = import_module("onnx")


def _write(folder: Path, location: str, **entries: str) -> Path:
    model = onnx_models.model(weights_in=location)
    for entry in model.graph.initializer[0].external_data:
        entry.value = entries.pop(entry.key, entry.value)
    for key, value in entries.items():
        model.graph.initializer[0].external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def _add_weights(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(WEIGHTS.tobytes())


@pytest.mark.parametrize("place", ["initializer", "constant", "branch", "function", "sparse"])
def test_external_data_is_found_wherever_a_tensor_is(tmp_path: Path, place: str) -> None:
    """Weights are initialisers as a rule, but constants in branches and functions are tensors too."""
    model = onnx_models.model(weights_in="weights.bin")
    tensor = model.graph.initializer.pop()
    node = onnx.helper.make_node("Constant", [], ["weights"], value=tensor)
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "constant":
        model.graph.node.insert(0, node)
    elif place == "branch":
        branch = onnx.helper.make_graph([node], "branch", [], [])
        model.graph.node.append(onnx.helper.make_node("If", ["c"], ["o"], then_branch=branch, else_branch=branch))
    elif place == "function":
        model.functions.append(onnx.helper.make_function("here", "f", [], ["weights"], [node], model.opset_import))
    else:
        sparse = model.graph.sparse_initializer.add()
        sparse.values.CopyFrom(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    _add_weights(tmp_path / "weights.bin")
    assert weight_files(path) == ("weights.bin",)


def test_a_file_with_its_weights_has_no_others(tmp_path: Path) -> None:
    """Also if external data is left over from before they were loaded, or a node is called location."""
    model = onnx_models.model(weights_in="gone.bin")
    model.graph.initializer[0].data_location = onnx.TensorProto.DEFAULT
    model.graph.initializer[0].raw_data = WEIGHTS.tobytes()
    model.graph.node[0].name = "location"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert weight_files(path) == ()
    assert checked_onnx_file(path) == path


@pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin", "./weights.bin", "Weights 1.onnx.data"])
def test_weights_in_a_models_folder_are_read(tmp_path: Path, location: str) -> None:
    """The hash of the folder covers them."""
    folder = tmp_path / "foreign"
    path = _write(folder / "network", location)
    _add_weights(folder / "network" / location)
    onnx_models.write_manifest(folder, "network")
    assert checked_onnx_file(folder / "network") == path
    with ModelLoader(Repository(tmp_path)).open("foreign"):
        pass
    (folder / "network" / location).write_bytes(bytes(WEIGHTS.nbytes))
    with pytest.raises(SkylaneError, match="it was changed or is incomplete"):
        ModelLoader(Repository(tmp_path)).open("foreign")


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "a/../../weights.bin", "/etc/hostname", "", ".", "a\0b", "\x1b[31m", "..", "*/_ORT_MEM_ADDR_/*"],
)
def test_a_location_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    """The file exists where ONNX Runtime would look; a control character never reaches the terminal."""
    path = _write(tmp_path / "model", location)
    _add_weights(tmp_path / "weights.bin")
    for given_path in (path, path.parent):
        with pytest.raises(EngineError, match="keeps weights in ") as refused:
            checked_onnx_file(given_path)
        assert str(refused.value).isprintable()
        assert "nonexistent" not in str(refused.value)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    """A link to a file, a folder behind a link, a link to itself; a link within the folder is read."""
    path = _write(tmp_path / "model", "sub/weights.bin")
    folder = path.parent
    _add_weights(tmp_path / "elsewhere" / "weights.bin")
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EngineError, match="a link leads out"):
        weight_files(path)
    (folder / "sub").unlink()
    (folder / "sub").mkdir()
    (folder / "sub" / "weights.bin").symlink_to(tmp_path / "elsewhere" / "weights.bin")
    with pytest.raises(EngineError, match="a link leads out"):
        weight_files(path)
    (folder / "sub" / "weights.bin").unlink()
    (folder / "sub" / "weights.bin").symlink_to("weights.bin")
    with pytest.raises(EngineError, match="cannot be read"):
        weight_files(path)
    (folder / "sub" / "weights.bin").unlink()
    _add_weights(folder / "real.bin")
    (folder / "sub" / "weights.bin").symlink_to("../real.bin")
    assert weight_files(path) == ("sub/weights.bin",)


def test_missing_short_and_special_files_are_refused(tmp_path: Path) -> None:
    """Also a name that differs in case, a folder, and a pipe, which would wait for ever."""
    path = _write(tmp_path, "weights.bin")
    _add_weights(tmp_path / "Weights.bin")
    with pytest.raises(EngineError, match=r"'weights.bin', which is missing: put it there"):
        weight_files(path)
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes()[:-1])
    with pytest.raises(EngineError, match=r"'weights.bin', which has 59 bytes instead of 60: it is incomplete"):
        weight_files(path)
    (tmp_path / "weights.bin").unlink()
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(EngineError, match="is no file inside its folder"):
        weight_files(path)
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "weights.bin").mkdir()
    with pytest.raises(EngineError, match="is no file inside its folder"):
        weight_files(path)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-1"},
        {"offset": "1e3"},
        {"length": "٣"},
        {"length": "9" * 5000},
        {"offset": "1"},
        {"offset": str(2**62)},
    ],
    ids=range(6),
)
def test_a_wrong_offset_or_length_is_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    """Before ONNX Runtime maps the file."""
    path = _write(tmp_path, "weights.bin", **entries)
    _add_weights(tmp_path / "weights.bin")
    with pytest.raises(EngineError, match=r"is no number|it is incomplete"):
        weight_files(path)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (2, 0, 1)])
def test_the_order_of_the_entries_does_not_matter(tmp_path: Path, order: tuple[int, ...]) -> None:
    """ONNX defines none; other entries, such as a checksum, are allowed."""
    model = onnx_models.model(weights_in="weights.bin")
    tensor = model.graph.initializer[0]
    entries = [type(entry).FromString(entry.SerializeToString()) for entry in tensor.external_data]
    del tensor.external_data[:]
    tensor.external_data.extend(entries[place] for place in order)
    tensor.external_data.add(key="checksum", value="0" * 40)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EngineError, match="which is missing"):
        weight_files(path)
    _add_weights(tmp_path / "weights.bin")
    assert weight_files(path) == ("weights.bin",)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(EngineError, match="has 5 bytes instead of 60"):
        weight_files(path)


def test_names_that_look_like_external_data_are_not(tmp_path: Path) -> None:
    """A tensor or a note called location."""
    model = onnx_models.model()
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("location", onnx.TensorProto.FLOAT, [1]))
    for each in (model, model.graph, model.graph.node[0]):
        each.metadata_props.add(key="location", value="Paris")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert weight_files(path) == ()


@given(st.data())
def test_damaged_files_raise_only_the_engines_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes after the word that makes the scan look closer."""
    content = bytearray(onnx_models.model(weights_in="weights.bin").SerializeToString())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "model.onnx"
    path.write_bytes(bytes(content) + b"location")
    with suppress(EngineError):
        weight_files(path)


def test_a_folder_with_several_models_is_refused(tmp_path: Path) -> None:
    """It is unknown which one is meant."""
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.onnx").touch()
    with pytest.raises(EngineError, match=r"holds 2 \.onnx files: give a folder with one"):
        checked_onnx_file(tmp_path)
