"""Local models and tuning files that do not fit the reference model: one error line before the first frame."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from cloud.models.loader import ModelLoader
from shared.models.repository import Repository
from tests.pipeline.rig import WAIT_S, worker
from tests.support.local_models import write_brightness, write_segmentation

HEIGHT, WIDTH = 32, 48
FLAGS = ("--closed-loop", "--connect-timeout", "60")
CASCADE = ("--local-model", "local", "--cascade")
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the reference `tiny`, a local model `local` that fits it, and others that do not."""
    root = tmp_path_factory.mktemp("models")
    write_brightness(root, "tiny", HEIGHT, WIDTH, steepness=1000.0)
    write_brightness(root, "local", HEIGHT // 2, WIDTH // 2, steepness=20.0)
    write_brightness(root, "night", HEIGHT, WIDTH, steepness=1.0, labels=("night", "bright"))
    write_segmentation(root, "seg", HEIGHT, WIDTH, 3)
    return root


@pytest.fixture(scope="module")
def broker_url(mosquitto_url: str, models: Path) -> Iterator[str]:
    """The URL of a broker with a worker of the reference."""
    with ModelLoader(Repository(models)).open("tiny") as model, worker(mosquitto_url, model):
        yield mosquitto_url


@pytest.fixture
def refused(fails: Callable[..., str], broker_url: str, image_folder: Callable[[int], Path], tmp_path: Path) -> Refused:
    """Starts a vehicle that must end with one error line; returns it after checking that no run folder is left."""
    source, out = image_folder(3), tmp_path / "run"

    def run(*flags: object) -> str:
        vehicle = f"car-{uuid4().hex[:6]}"
        connection = ("--broker", broker_url, "--model", "tiny", "--vehicle", vehicle, "--out", out)
        line = fails("edge", "play", source, *connection, *FLAGS, *flags)
        assert not out.exists()
        return line

    return run


def test_a_local_model_that_does_not_fit_is_refused(refused: Refused, models: Path) -> None:
    """Its answers would be reported as those of the reference."""
    for flags, problem in (
        (("night",), "local model night has other labels than model tiny (label 0 is 'night' instead of 'dark')"),
        (("seg",), "local model seg answers segmentation, model tiny classification: choose one of the same task"),
        (("lcoal",), "no model 'lcoal': did you mean local?"),
        (("local", "--cascade"), "no tuned thresholds for local model local: give --c-low and --c-high"),
    ):
        assert problem in refused("--models", models, "--local-model", *flags)


@pytest.fixture
def tuning(models: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a tuning file for `tiny` and `local`; the arguments replace sections, None removes one."""
    hashes = {name: Repository(models).find(name).manifest.sha256 for name in ("tiny", "local")}

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


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"reference": {"name": "road-small", "sha256": "01" * 32}}, "reference model road-small, not for tiny"),
        ({"reference": {"name": "tiny", "sha256": "01" * 32}}, "another file of tiny (010101010101…)"),
        ({"reference": {"name": "tiny", "sha256": "1234"}}, "reference.sha256"),
        ({"reference": None}, "reference"),
        ({"gate": {"mse": float("nan"), "reuse_frames": 10, "reuse_ms": 1000.0}}, "gate.mse"),
        ({"gate": {"mse": 30.0, "reuse_frames": 10, "reuse_ms": float("inf")}}, "gate.reuse_ms"),
        ({"gate": [[[[[[[[]]]]]]]]}, "gate"),
        ({"local": {"name": "a/b", "sha256": "01" * 32, "temperature": 1, "c_low": 0, "c_high": 1}}, "local.name"),
        ({"thresholds": {"mse": 30.0}}, "thresholds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tuning_file_that_does_not_fit_is_refused_with_its_name(
    refused: Refused, tuning: Callable[..., Path], sections: dict[str, Any], problem: str
) -> None:
    """Its thresholds promise an accuracy; one that is not a number would compare as false for ever."""
    file = tuning(**sections)
    line = refused("--gate", "mse", "--tuning", file)
    assert str(file) in line
    assert problem in line


def test_a_tuning_file_of_another_local_model_is_refused(
    refused: Refused, tuning: Callable[..., Path], models: Path
) -> None:
    """The temperature belongs to one file."""
    other = {"name": "local", "sha256": "01" * 32, "temperature": 1.0, "c_low": 0.1, "c_high": 0.9}
    line = refused("--models", models, *CASCADE, "--tuning", tuning(local=other))
    assert "local model another file of local" in line


def test_a_missing_library_names_the_extra(
    broker_url: str, models: Path, image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """A vehicle is installed without engines unless it has a local model."""
    own, out = Path(shutil.copytree(models, tmp_path / "own")), tmp_path / "run"
    (own / "local" / "model.onnx").rename(own / "local" / "model.tflite")
    manifest = own / "local" / "model.yaml"
    changes = {"format": "tflite", "file": "model.tflite"}
    manifest.write_text(yaml.safe_dump(yaml.safe_load(manifest.read_text()) | changes))
    arguments = ["edge", "play", str(image_folder(3)), "--broker", broker_url, "--model", "tiny", "--out", str(out)]
    arguments += ["--vehicle", f"car-{uuid4().hex[:6]}", "--models", str(own), "--local-model", "local", *FLAGS]
    program = f"import sys; sys.modules['ai_edge_litert'] = None; from skylane import cli; cli.main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("skylane: ")
    assert "ai_edge_litert" in line
    assert "pip install 'skylane[local]'" in line
    assert not out.exists()
