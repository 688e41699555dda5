"""The contract of all engines: the same tiny networks through every engine and every format that it reads."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cloud.models.loader import ModelLoader
from modelling.conversion.conversion import convert
from shared import registry
from shared.errors import MissingExtraError
from shared.files import tree_sha256
from shared.inference.engine import DeviceError, EngineError, InferenceError, Outputs
from shared.inference.model import agreement
from shared.inference.table import ENGINES
from shared.models.manifest import MANIFEST_NAME, REMOTE_FORMATS, Placement
from shared.models.repository import Repository
from tests.support import model_servers, tiny_models, tiny_torch_models
from tests.support.model_servers import Server

_REQUIRE_TORCH = "SKYLANE_REQUIRE_TORCH"  # Set in environments where the tests must run PyTorch.

CASES = [(engine, form) for engine, entry in ENGINES.items() for form in entry.formats]
FIRST_CASES = [(engine, entry.formats[0]) for engine, entry in ENGINES.items()]  # One for each engine.
# A converted file holds the postprocessing of its task, so that all engines do the same for every task.
CONVERTED_TASKS = {"saved_model": 2, "onnx": 2, "tflite": 2, "frozen_graph": 3, "openvino": 3}
TASKS = ("segmentation", "tensors", "detection", "classification")


def _case_name(value: tuple[str, str] | str) -> str:
    return value if isinstance(value, str) else "-".join(value)


class Models:
    """A repository that creates each model on first use."""

    def __init__(self, root: Path) -> None:
        self.repository = Repository(root)
        self._references: dict[str, Outputs] = {}
        self._servers: list[Server] = []

    def name(self, task: str, form: str) -> str:
        """Returns the name of the model of a task in a format."""
        root, source = self.repository.root, task
        if not (root / source).exists():
            tiny_models.write(root, task)
        if form == "keras":
            return source
        if form == "openvino":
            source = self.name(task, "frozen_graph")
        name = f"{source}-{form}"
        if (root / name).exists():
            return name
        if form in REMOTE_FORMATS:
            server = model_servers.serve(root, source, form, root / f".{name}")
            self._servers.append(server)
            model_servers.write_manifest(root, source, form, server.address, name)
        elif form == "torchscript":
            tiny_torch_models.write(self.repository, source, name)
        else:
            convert(self.repository, source, form, tiny_models.noise(1), new_name=name)
        return name

    def close(self) -> None:
        """Stops the servers."""
        for server in self._servers:
            server.stop()

    def reference(self, task: str, count: int) -> Outputs:
        """Returns TensorFlow's outputs, computed one image at a time."""
        if task not in self._references:
            with ModelLoader(self.repository, engine="tensorflow").open(self.name(task, "keras")) as model:
                outputs = [model.infer(image[np.newaxis]) for image in tiny_models.noise(count)]
            self._references[task] = {head: np.concatenate([each[head] for each in outputs]) for head in outputs[0]}
        return self._references[task]

    def with_changed_manifest(self, form: str, folder: Path, change: Callable[[dict[str, Any]], None]) -> Repository:
        """Returns a repository with one model `m`: a segmentation with a changed manifest."""
        shutil.copytree(self.repository.find(self.name("segmentation", form)).folder, folder / "m")
        path = folder / "m" / MANIFEST_NAME
        manifest = yaml.safe_load(path.read_text())
        manifest.pop("name", None)
        change(manifest)
        path.write_text(yaml.safe_dump(manifest))
        return Repository(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """The models, shared by all tests of this file."""
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


@pytest.fixture(params=CASES, ids=_case_name)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An engine and a format that it reads; skipped if the engine's library is not installed."""
    engine, form = request.param
    try:
        registry.load("engine", ENGINES, engine)
    except MissingExtraError as error:
        if engine == "torchscript" and os.environ.get(_REQUIRE_TORCH):
            raise
        pytest.skip(str(error))
    return engine, form


@pytest.mark.parametrize(
    ("case", "task"),
    [(case, task) for case in CASES for task in TASKS[: CONVERTED_TASKS.get(case[1])]],
    ids=_case_name,
    indirect=["case"],
)
def test_outputs_equal_those_of_tensorflow(models: Models, case: tuple[str, str], task: str) -> None:
    """The choice of an engine must not change the outputs, in a batch or for single images."""
    engine, form = case
    reference = models.reference(task, 3)
    name, placement = models.name(task, form), Placement(device="cpu", intra_threads=1)
    with ModelLoader(models.repository, placement, engine=engine).open(name) as model:
        assert model.engine_name == engine
        assert model.device == (model.manifest.remote.address if model.manifest.remote else "cpu")
        for count in (3, 1):
            outputs = model.infer(tiny_models.noise(3)[:count])
            expected = {head: values[:count] for head, values in reference.items()}
            assert {head: (each.shape, each.dtype) for head, each in outputs.items()} == {
                head: (each.shape, each.dtype) for head, each in expected.items()
            }
            assert agreement(model.manifest, expected, outputs) >= 0.999
            for head, values in expected.items():
                if values.dtype == np.float32:
                    np.testing.assert_allclose(outputs[head], values, rtol=1e-3, atol=1e-3)


def test_the_engine_of_one_thread_keeps_its_outputs_in_another_and_closes_twice(
    models: Models, case: tuple[str, str]
) -> None:
    """The worker loads models in one thread, runs them in another, and encodes masks while the next batch is inferred."""
    engine, form = case
    first, second = tiny_models.noise(2)[:1], tiny_models.noise(2)[1:]
    loader = ModelLoader(models.repository, engine=engine, warm_up_runs=1)
    model = loader.load(loader.find(models.name("segmentation", form)))
    masks: list[Any] = []
    thread = threading.Thread(target=lambda: masks.append(model.predict(first)))
    thread.start()
    thread.join()
    before = masks[0].copy()
    assert (model.predict(second) != before).any()
    np.testing.assert_array_equal(masks[0], before)
    np.testing.assert_array_equal(model.predict(first), before)
    model.close()
    model.close()


def test_nan_in_the_outputs_raises_an_inference_error(models: Models, case: tuple[str, str]) -> None:
    """NaN must not be reported as a score or a box; the next image works again."""
    engine, form = case
    with ModelLoader(models.repository, engine=engine).open(models.name("tensors", form)) as model:
        shape = (1, tiny_models.HEIGHT, tiny_models.WIDTH, 3)
        with pytest.raises(InferenceError, match=r"^the model returned NaN"):
            model.infer(np.zeros(shape, np.uint8))
        assert np.isfinite(model.infer(np.full(shape, 255, np.uint8))["means"]).all()


def test_a_wrong_tensor_name_is_reported(models: Models, case: tuple[str, str], tmp_path: Path) -> None:
    """A typo in the manifest gives an error of one line with the name."""
    engine, form = case
    for end in ("input", "output"):

        def rename(manifest: dict[str, Any], end: str = end) -> None:
            manifest[end]["tensor"] = "x" + manifest[end]["tensor"]

        repository = models.with_changed_manifest(form, tmp_path / end, rename)
        with pytest.raises(EngineError, match=f"no {end}") as caught:
            ModelLoader(repository, engine=engine).open("m")
        assert "\n" not in str(caught.value)


def test_a_wrong_image_size_in_the_manifest_is_refused(models: Models, case: tuple[str, str], tmp_path: Path) -> None:
    """Otherwise, the first frame would fail."""
    engine, form = case
    if engine == "torchscript":
        pytest.skip("a TorchScript declares no shapes")

    def enlarge(manifest: dict[str, Any]) -> None:
        manifest["input"]["height"] += 1

    with pytest.raises(EngineError):
        ModelLoader(models.with_changed_manifest(form, tmp_path, enlarge), engine=engine).open("m")


def test_a_truncated_file_is_refused(models: Models, case: tuple[str, str], tmp_path: Path) -> None:
    """A file from an interrupted copy, with a matching hash, gives an error of one line."""
    engine, form = case
    if form in REMOTE_FORMATS:
        pytest.skip("a remote model has no file")
    repository = models.with_changed_manifest(form, tmp_path, lambda _: None)
    manifest_path = repository.root / "m" / MANIFEST_NAME
    manifest = yaml.safe_load(manifest_path.read_text())
    path = repository.root / "m" / manifest["file"]
    file = (
        path
        if path.is_file()
        else next(each for each in path.iterdir() if each.name in ("model.xml", "saved_model.pb"))
    )
    content = file.read_bytes()
    for share in (0.0, 0.3, 0.9):
        file.write_bytes(content[: int(len(content) * share)])
        manifest_path.write_text(yaml.safe_dump(manifest | {"sha256": tree_sha256(path)}))
        with pytest.raises(EngineError) as caught:
            ModelLoader(repository, engine=engine).open("m")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", FIRST_CASES, ids=_case_name, indirect=True)
def test_a_device_that_does_not_exist_is_refused(models: Models, case: tuple[str, str]) -> None:
    """A typo, or a measurement on a requested GPU, must not silently use the CPU."""
    engine, form = case
    name = models.name("segmentation", form)
    with pytest.raises(DeviceError, match="is not a device: use auto, cpu or gpu:N"):
        ModelLoader(models.repository, Placement(device="gpu:x"), engine=engine).open(name)
    with ModelLoader(models.repository, engine=engine).open(name) as model:
        if model.device.startswith("gpu"):
            pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match="sees no GPU on this machine"):
        ModelLoader(models.repository, Placement(device="gpu"), engine=engine).open(name)
