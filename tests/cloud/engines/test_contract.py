"""One contract for every engine: the same tiny networks through every format that each reads."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from cloud.engines.engine import ENGINES, DeviceError, EngineError, InferenceError, Outputs, Placement
from cloud.models.agreement import agreement
from cloud.models.manifest import MANIFEST_NAME, REMOTE_FORMATS
from cloud.models.repository import Repository
from modelling.conversion.conversion import convert
from shared import registry
from shared.errors import MissingExtraError
from shared.hashing import tree_sha256
from tests.support import model_servers, tiny_models, tiny_torch_models
from tests.support.model_servers import Server

_REQUIRE_TORCH = "SKYLANE_REQUIRE_TORCH"  # Set where PyTorch is installed to be tested.

CASES = [(engine, form) for engine, entry in ENGINES.items() for form in entry.formats]
TRAINED_EQUAL = 0.999


class Shelf:
    """A repository that makes each model when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.repository = Repository(root)
        self._references: dict[str, Outputs] = {}
        self._servers: list[Server] = []

    def name(self, task: str, form: str, *, roots: bool = False) -> str:
        """The model of a task in a format."""
        source = f"{task}-roots" if roots else task
        if not (self.repository.root / source).exists():
            tiny_models.write(self.repository.root, task, roots=roots)
        if form == "keras":
            return source
        if form == "openvino":
            source = self.name(task, "frozen_graph", roots=roots)
        called = f"{source}-{form}"
        if not (self.repository.root / called).exists() and form in REMOTE_FORMATS:
            server = model_servers.serve(self.repository.root, source, form, self.repository.root / f".{called}")
            self._servers.append(server)
            model_servers.write(self.repository.root, source, form, server.address, called)
        elif not (self.repository.root / called).exists() and form == "torchscript":
            tiny_torch_models.write(self.repository, source, called)
        elif not (self.repository.root / called).exists():
            convert(self.repository, source, form, tiny_models.noise(1), called=called)
        return called

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.stop()

    def reference(self, task: str, count: int) -> Outputs:
        """What TensorFlow answers, one picture at a time."""
        if task in self._references:
            return self._references[task]
        with self.repository.load(self.name(task, "keras"), engine="tensorflow") as model:
            answers = [model.infer(picture[np.newaxis]) for picture in tiny_models.noise(count)]
        together = {head: np.concatenate([answer[head] for answer in answers]) for head in answers[0]}
        return self._references.setdefault(task, together)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """Models are made once for all tests of this file."""
    shelf = Shelf(tmp_path_factory.mktemp("models"))
    yield shelf
    shelf.close()


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES])
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An engine and a format that it reads; skipped only where its library is not installed."""
    engine, form = request.param
    try:
        registry.load("engine", ENGINES, engine)
    except MissingExtraError as error:
        if engine == "torchscript" and os.environ.get(_REQUIRE_TORCH):
            raise
        pytest.skip(str(error))
    return engine, form


@pytest.mark.parametrize("task", tiny_models.TASKS)
def test_every_engine_answers_as_tensorflow_does(shelf: Shelf, case: tuple[str, str], task: str) -> None:
    """An engine may be chosen for its speed only if nobody can tell it by its answers, in a batch or alone."""
    engine, form = case
    wanted = shelf.reference(task, 3)
    with shelf.repository.load(
        shelf.name(task, form), Placement(device="cpu", intra_threads=1), engine=engine
    ) as model:
        assert model.engine_name == engine
        assert model.device == (model.manifest.remote.address if model.manifest.remote else "cpu")
        for count in (3, 1):
            found = model.infer(tiny_models.noise(3)[:count])
            expected = {head: values[:count] for head, values in wanted.items()}
            assert {head: (each.shape, each.dtype) for head, each in found.items()} == {
                head: (each.shape, each.dtype) for head, each in expected.items()
            }
            assert agreement(model.manifest, expected, found) >= TRAINED_EQUAL
            for head, values in expected.items():
                if values.dtype == np.float32:
                    np.testing.assert_allclose(found[head], values, rtol=1e-3, atol=1e-3)


def test_an_answer_outlives_the_next_one(shelf: Shelf, case: tuple[str, str]) -> None:
    """Masks are encoded while the next batch is inferred: an engine must not write into what it gave."""
    engine, form = case
    first, second = tiny_models.noise(2)[:1], tiny_models.noise(2)[1:]
    with shelf.repository.load(shelf.name("segmentation", form), engine=engine) as model:
        answer = model.predict(first)
        before = answer.copy()
        assert (model.predict(second) != before).any()
        np.testing.assert_array_equal(answer, before)
        np.testing.assert_array_equal(model.predict(first), before)


def test_an_engine_may_be_used_by_a_thread_that_did_not_open_it(shelf: Shelf, case: tuple[str, str]) -> None:
    """The worker opens models in one thread and runs them in another, and closes where it ends, twice if need be."""
    engine, form = case
    model = shelf.repository.load(shelf.name("segmentation", form), engine=engine)
    answers: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: answers.append(model.predict(tiny_models.noise(1))))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(answers[0], model.predict(tiny_models.noise(1)))
    model.close()
    model.close()


def test_numbers_that_are_none_are_a_failure(shelf: Shelf, case: tuple[str, str]) -> None:
    """NaN drawn as a box, or told as a score, looks like an answer."""
    engine, form = case
    with shelf.repository.load(shelf.name("tensors", form, roots=True), engine=engine) as model:
        with pytest.raises(InferenceError, match=r"^the model returned NaN"):
            model.infer(np.zeros((1, tiny_models.HEIGHT, tiny_models.WIDTH, 3), np.uint8))
        assert np.isfinite(
            model.infer(np.full((1, tiny_models.HEIGHT, tiny_models.WIDTH, 3), 255, np.uint8))["means"]
        ).all()


@pytest.mark.parametrize("end", ["input", "output"])
def test_a_tensor_that_is_not_there_is_named(shelf: Shelf, case: tuple[str, str], end: str, tmp_path: Path) -> None:
    """A typo in a manifest must cost a minute, not an afternoon."""
    engine, form = case

    def rename(manifest: dict[str, dict[str, str]]) -> None:
        manifest[end]["tensor"] = "x" + manifest[end]["tensor"]

    repository = _changed(shelf, form, tmp_path, rename)
    with pytest.raises(EngineError, match=f"no {end}") as caught:
        repository.load("m", engine=engine)
    assert "\n" not in str(caught.value)


def test_another_size_than_the_manifests_is_refused(shelf: Shelf, case: tuple[str, str], tmp_path: Path) -> None:
    """It would fail on the first frame, or worse, not fail."""
    engine, form = case
    if engine == "torchscript":
        pytest.skip("a TorchScript tells no shapes")

    def grow(manifest: dict[str, dict[str, int]]) -> None:
        manifest["input"]["height"] += 1

    repository = _changed(shelf, form, tmp_path, grow)
    with pytest.raises(EngineError):
        repository.load("m", engine=engine)


def test_a_file_cut_short_is_refused(shelf: Shelf, case: tuple[str, str], tmp_path: Path) -> None:
    """An interrupted copy, hashed as it is, must end in one line."""
    engine, form = case
    if form in REMOTE_FORMATS:
        pytest.skip("a model on another server has no file here")
    repository = _changed(shelf, form, tmp_path, lambda _: None)
    folder = repository.root / "m"
    manifest = yaml.safe_load((folder / MANIFEST_NAME).read_text())
    path = folder / manifest["file"]
    victim = (
        path
        if path.is_file()
        else next(path / each for each in ("model.xml", "saved_model.pb") if (path / each).is_file())
    )
    content = victim.read_bytes()
    for part in (0.0, 0.3, 0.9):
        victim.write_bytes(content[: int(len(content) * part)])
        manifest["sha256"] = tree_sha256(path)
        (folder / MANIFEST_NAME).write_text(yaml.safe_dump(manifest))
        with pytest.raises(EngineError) as caught:
            repository.load("m", engine=engine)
        assert "\n" not in str(caught.value)


def test_a_name_of_no_device_is_refused(shelf: Shelf, case: tuple[str, str]) -> None:
    """A typo must not run on the CPU in silence."""
    engine, form = case
    with pytest.raises(DeviceError, match="is no device: use auto, cpu or gpu:N"):
        shelf.repository.load(shelf.name("segmentation", form), Placement(device="gpu:x"), engine=engine)


def test_a_gpu_that_is_not_there_is_a_clear_error(shelf: Shelf, case: tuple[str, str]) -> None:
    """Who asked for a GPU must not measure a CPU."""
    engine, form = case
    with shelf.repository.load(shelf.name("segmentation", form), engine=engine) as model:
        if model.device.startswith("gpu"):
            pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match="sees no GPU on this machine"):
        shelf.repository.load(shelf.name("segmentation", form), Placement(device="gpu"), engine=engine)


def _changed(shelf: Shelf, form: str, tmp_path: Path, change: Callable[[dict], None]) -> Repository:  # type: ignore[type-arg]
    """A repository with one model `m`: a segmentation with another manifest."""
    source = shelf.repository.folder(shelf.name("segmentation", form))
    shutil.copytree(source, tmp_path / "m")
    path = tmp_path / "m" / MANIFEST_NAME
    manifest = yaml.safe_load(path.read_text())
    manifest.pop("name", None)
    change(manifest)
    path.write_text(yaml.safe_dump(manifest))
    return Repository(tmp_path)
