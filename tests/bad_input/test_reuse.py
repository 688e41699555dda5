"""Local models and tuning files that do not fit the reference model: one error line before the first frame."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from cloud.models.loader import ModelLoader
from shared.files import tree_sha256
from shared.models.repository import Repository
from tests.pipeline.rig import WAIT_S, worker
from tests.support.local_models import write_brightness, write_segmentation

HEIGHT, WIDTH = 32, 48
FLAGS = ("--closed-loop", "--connect-timeout", "60")
AUTO = ("--gate", "mse")
CASCADE = ("--local-model", "local", "--cascade")
NUMBERS = ("--c-low", "0.1", "--c-high", "0.9")
OTHER_SHA = "0123456789ab" * 5 + "0123"
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two references, `tiny` and `seg`, and a local model `local` that fits the first one."""
    root = tmp_path_factory.mktemp("models")
    write_brightness(root, "tiny", HEIGHT, WIDTH, steepness=1000.0)
    write_brightness(root, "local", HEIGHT // 2, WIDTH // 2, steepness=20.0)
    write_segmentation(root, "seg", HEIGHT, WIDTH, 3)
    return root


@pytest.fixture(scope="module")
def broker_url(mosquitto_url: str, models: Path) -> Iterator[str]:
    """The URL of a broker with a worker for each reference."""
    with ExitStack() as stack:
        for name in ("tiny", "seg"):
            model = stack.enter_context(ModelLoader(Repository(models)).open(name))
            stack.enter_context(worker(mosquitto_url, model))
        yield mosquitto_url


@pytest.fixture
def own(models: Path, tmp_path: Path) -> Path:
    """A copy of the repository that a test may change."""
    return Path(shutil.copytree(models, tmp_path / "own"))


@pytest.fixture
def refused(fails: Callable[..., str], broker_url: str, image_folder: Callable[[int], Path], tmp_path: Path) -> Refused:
    """Starts a vehicle that must end with one error line; returns it after checking that no run folder is left."""
    source, out = image_folder(3), tmp_path / "run"

    def run(*flags: object, model: str = "tiny") -> str:
        vehicle = f"car-{uuid4().hex[:6]}"
        connection = ("--broker", broker_url, "--model", model, "--vehicle", vehicle, "--out", out)
        line = fails("edge", "play", source, *connection, *FLAGS, *flags)
        assert not out.exists()
        return line

    return run


def changed(root: Path, name: str, **keys: Any) -> None:
    """Changes keys of a model's manifest."""
    path = root / name / "model.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys))


def content(root: Path, name: str, data: bytes, form: str = "onnx") -> None:
    """Replaces the file of a model, with the right hash."""
    file = f"model.{form}"
    (root / name / file).write_bytes(data)
    changed(root, name, format=form, file=file, sha256=tree_sha256(root / name / file))


def test_a_local_model_with_other_labels_is_refused(refused: Refused, own: Path) -> None:
    """Its classes would be reported under the names of the reference's."""
    write_brightness(own, "night", HEIGHT, WIDTH, steepness=1.0, labels=("night", "bright"))
    write_brightness(own, "swapped", HEIGHT, WIDTH, steepness=1.0, labels=("bright", "dark"))
    line = refused("--models", own, "--local-model", "night")
    assert "local model night has other labels than model tiny (label 0 is 'night' instead of 'dark')" in line
    assert "label 0 is 'bright' instead of 'dark'" in refused("--models", own, "--local-model", "swapped")


def test_a_local_model_with_fewer_labels_is_refused(refused: Refused, own: Path) -> None:
    """A shorter list that starts with the same labels is no subset that could be used."""
    write_segmentation(own, "two", HEIGHT, WIDTH, 2)
    assert "2 labels instead of 3" in refused("--models", own, "--local-model", "two", model="seg")


def test_a_local_model_of_another_task_is_refused(refused: Refused, own: Path) -> None:
    """Covers the name of the wrong model."""
    line = refused("--models", own, "--local-model", "seg")
    assert "local model seg answers segmentation, model tiny classification: choose one of the same task" in line


def test_a_local_model_with_another_aspect_ratio_is_refused(refused: Refused, own: Path) -> None:
    """Its mask would show another part of the frame than the reference's."""
    write_segmentation(own, "wide", HEIGHT, 2 * WIDTH, 3)
    line = refused("--models", own, "--local-model", "wide", model="seg")
    assert f"input of {HEIGHT}×{2 * WIDTH}, model seg of {HEIGHT}×{WIDTH}" in line


def test_a_format_that_a_vehicle_cannot_run_names_the_conversion(refused: Refused, own: Path) -> None:
    """The vehicle has no TensorFlow."""
    content(own, "local", b"graph", "frozen_graph")
    line = refused("--models", own, "--local-model", "local")
    assert "local model local is a frozen_graph, and a vehicle runs onnx or tflite" in line
    assert "skylane model convert local --to onnx" in line


def test_a_missing_local_model_is_reported_with_the_nearest(refused: Refused, own: Path) -> None:
    """Covers a typing error."""
    assert "no model 'lcoal': did you mean local?" in refused("--models", own, "--local-model", "lcoal")


def test_a_changed_or_missing_file_of_a_local_model_is_refused(refused: Refused, own: Path) -> None:
    """The rows of the log name the hash of the model that answered."""
    file = own / "local" / "model.onnx"
    file.write_bytes(file.read_bytes() + b"\0")
    assert "was changed or is incomplete" in refused("--models", own, "--local-model", "local")
    file.unlink()
    assert "model.onnx is missing" in refused("--models", own, "--local-model", "local")


@pytest.mark.parametrize("form", ["onnx", "tflite"])
@pytest.mark.parametrize("data", [b"", b"not a model " * 500, bytes(4096)], ids=["empty", "text", "zeros"])
def test_a_damaged_file_of_a_local_model_is_refused(refused: Refused, own: Path, form: str, data: bytes) -> None:
    """The hash is that of the manifest, so only the engine can notice."""
    content(own, "local", data, form)
    assert f"model.{form}" in refused("--models", own, "--local-model", "local")


def test_a_cascade_of_masks_without_confidence_is_refused(refused: Refused, own: Path) -> None:
    """The vehicle could never be sure of an answer, and would run the model for nothing."""
    write_segmentation(own, "masks", HEIGHT, WIDTH, 3)
    changed(own, "masks", confidence=None)
    line = refused("--models", own, "--local-model", "masks", "--cascade", *NUMBERS, model="seg")
    assert "--cascade: local model masks: the model has no output confidence" in line


def test_a_confidence_that_the_file_does_not_have_is_refused(refused: Refused, own: Path) -> None:
    """Covers a manifest written by hand."""
    write_segmentation(own, "masks", HEIGHT, WIDTH, 3)
    changed(own, "masks", confidence="scroes")
    line = refused("--models", own, "--local-model", "masks", "--cascade", *NUMBERS, model="seg")
    assert "the model has no output 'scroes': did you mean scores?" in line


def test_auto_without_a_tuning_file_names_the_command(refused: Refused, own: Path) -> None:
    """No tuning ships for the user's own models."""
    line = refused(*AUTO)
    assert "there is no tuned threshold for model tiny: give --gate-threshold" in line
    assert "skylane model tune-gate BAG --model tiny" in line
    line = refused("--models", own, *CASCADE)
    assert "there are no tuned thresholds for local model local: give --c-low and --c-high" in line


@pytest.fixture
def tuning(models: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a tuning file for `tiny` and `local`; the arguments replace sections, None removes one."""
    repository = Repository(models)
    hashes = {name: repository.find(name).manifest.sha256 for name in ("tiny", "local")}

    def write(**sections: Any) -> Path:
        document = {
            "reference": {"name": "tiny", "sha256": hashes["tiny"]},
            "gate": {"mse": 30.0, "reuse_frames": 10, "reuse_ms": 1000.0},
            "local": {"name": "local", "sha256": hashes["local"], "temperature": 1.5, "c_low": 0.1, "c_high": 0.9},
        } | sections
        path = tmp_path / "tuning.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in document.items() if value is not None}))
        return path

    return write


def test_a_tuning_file_of_another_reference_is_refused(refused: Refused, tuning: Callable[..., Path]) -> None:
    """Its thresholds promise an accuracy that this model does not have."""
    file = tuning(reference={"name": "road-small", "sha256": OTHER_SHA})
    line = refused(*AUTO, "--tuning", file)
    assert f"{file} holds thresholds for the reference model road-small, not for tiny" in line
    line = refused(*AUTO, "--tuning", tuning(reference={"name": "tiny", "sha256": OTHER_SHA}))
    assert "another file of tiny (0123456789ab…)" in line
    assert "skylane model tune-gate" in line


def test_a_tuning_file_of_another_local_model_is_refused(
    refused: Refused, tuning: Callable[..., Path], models: Path
) -> None:
    """The temperature belongs to one file."""
    cascade = ("--models", models, *CASCADE, "--tuning")
    other = {"name": "local", "sha256": OTHER_SHA, "temperature": 1.0, "c_low": 0.1, "c_high": 0.9}
    assert "local model another file of local" in refused(*cascade, tuning(local=other))
    assert "local model road-tiny, not for local" in refused(*cascade, tuning(local=other | {"name": "road-tiny"}))
    assert "has no numbers for a local model" in refused(*cascade, tuning(local=None))


def test_a_tuning_file_without_the_chosen_method_is_refused(refused: Refused, tuning: Callable[..., Path]) -> None:
    """The threshold of one method means nothing to the other."""
    for gate in ({"pixels": 2.0, "reuse_frames": 10, "reuse_ms": 1000.0}, None):
        line = refused(*AUTO, "--tuning", tuning(gate=gate))
        assert "has no threshold of mse: give one with --gate-threshold" in line


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"gate": {"mse": float("nan"), "reuse_frames": 10, "reuse_ms": 1000.0}}, "gate.mse"),
        ({"gate": {"mse": -1.0, "reuse_frames": 10, "reuse_ms": 1000.0}}, "gate.mse"),
        ({"gate": {"pixels": 101.0, "reuse_frames": 10, "reuse_ms": 1000.0}}, "gate.pixels"),
        ({"gate": {"mse": 30.0, "reuse_frames": 0, "reuse_ms": 1000.0}}, "gate.reuse_frames"),
        ({"gate": {"mse": 30.0, "reuse_frames": 10, "reuse_ms": float("inf")}}, "gate.reuse_ms"),
        ({"gate": {"mse": 30.0, "reuse_frames": 10, "reuse_ms": 1000.0, "ssim": 1}}, "gate.ssim"),
        ({"gate": [[[[[[[[]]]]]]]]}, "gate"),
        ({"local": {"name": "local", "sha256": OTHER_SHA, "temperature": 0, "c_low": 0, "c_high": 1}}, "temperature"),
        ({"local": {"name": "local", "sha256": OTHER_SHA, "temperature": 1, "c_low": 1, "c_high": 0}}, "local"),
        ({"local": {"name": "a/b", "sha256": OTHER_SHA, "temperature": 1, "c_low": 0, "c_high": 1}}, "local.name"),
        ({"reference": {"name": "tiny", "sha256": "1234"}}, "reference.sha256"),
        ({"reference": None}, "reference"),
        ({"thresholds": {"mse": 30.0}}, "thresholds"),
    ],
)
def test_a_wrong_value_in_a_tuning_file_names_file_and_key(
    refused: Refused, tuning: Callable[..., Path], sections: dict[str, Any], key: str
) -> None:
    """A threshold that is not a number would compare as false for ever, without a message."""
    file = tuning(**sections)
    line = refused(*AUTO, "--tuning", file)
    assert str(file) in line
    assert key in line


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"gate: {mse: 30",
        b"[" * 5000,
        b"gate: &a [*a]\n",
        b"a: &a [x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n",
        b"gate: !!python/object/apply:os.system ['true']\n",
        b"gate: {mse: 1" + b"0" * 100_000 + b"}\n",
        b"model: road-small\nvehicle: car\n",
        b"x: " + b"y" * 3_000_000,
    ],
    ids=["empty", "binary", "cut", "nested", "cycle", "aliases", "object", "long number", "other file", "large"],
)
def test_a_hostile_tuning_file_is_refused_in_one_line(refused: Refused, tmp_path: Path, data: bytes) -> None:
    """A file from an unknown source must neither run code nor use up the memory."""
    file = tmp_path / "hostile.yaml"
    file.write_bytes(data)
    line = refused(*AUTO, "--tuning", file)
    assert "hostile.yaml" in line
    assert len(line) < 2000


@pytest.mark.parametrize("form", ["onnx", "tflite"])
def test_a_missing_library_names_the_extra(
    broker_url: str, own: Path, image_folder: Callable[[int], Path], tmp_path: Path, form: str
) -> None:
    """A vehicle is installed without engines unless it has a local model."""
    library = {"onnx": "onnxruntime", "tflite": "ai_edge_litert"}[form]
    content(own, "local", (own / "local" / "model.onnx").read_bytes(), form)
    out = tmp_path / "run"
    arguments = ["edge", "play", str(image_folder(3)), "--broker", broker_url, "--model", "tiny", "--out", str(out)]
    arguments += ["--vehicle", f"car-{uuid4().hex[:6]}", "--models", str(own), "--local-model", "local", *FLAGS]
    program = f"import sys; sys.modules[{library!r}] = None; from skylane import cli; cli.main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("skylane: ")
    assert library in line
    assert "pip install 'skylane[local]'" in line
    assert not out.exists()
