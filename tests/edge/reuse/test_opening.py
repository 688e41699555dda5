"""The checks before the first frame: the local model, the thresholds and the tuning file must fit the reference model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.config import EdgeConfig
from edge.reuse.opening import Reuse, open_reuse
from shared.errors import SkylaneError
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository
from tests.support.local_models import write_brightness, write_segmentation

CASCADE = {"local_model": "local", "cascade": True, "c_low": 0.1, "c_high": 0.9}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a repository with references and local models of two tasks."""
    root = tmp_path_factory.mktemp("models")
    write_brightness(root, "reference", 32, 48, steepness=100.0)
    write_brightness(root, "local", 16, 24, steepness=20.0)
    write_segmentation(root, "reference-masks", 32, 48, 3)
    write_segmentation(root, "local-masks", 16, 24, 3)
    return root


def card_of(repository: Path, name: str = "reference", **changes: Any) -> ModelCard:
    """Returns the card of a model, as a worker announces it."""
    return replace(Repository(repository).find(name).card(), **changes)


def config_of(repository: Path, **settings: Any) -> EdgeConfig:
    """Makes the configuration of a vehicle."""
    own = {"models": repository} if "local_model" in settings else {}
    return EdgeConfig.model_validate({**own, **settings})


def opened(config: EdgeConfig, card: ModelCard) -> Reuse | None:
    """Opens and closes what a configuration asks for."""
    with open_reuse(config, card) as reuse:
        return reuse


def tuning_file(folder: Path, repository: Path, **changes: Any) -> Path:
    """Writes a tuning file for the two classifications."""
    reference, local = card_of(repository), card_of(repository, "local")
    document = {
        "reference": {"name": reference.name, "sha256": reference.sha256},
        "gate": {"mse": 12.5, "reuse_frames": 30, "reuse_ms": 3000.0},
        "local": {"name": local.name, "sha256": local.sha256, "temperature": 1.5, "c_low": 0.05, "c_high": 0.95},
    }
    path = folder / "tuning.yaml"
    path.write_text(yaml.safe_dump(document | changes))
    return path


def test_nothing_is_opened_by_default(repository: Path) -> None:
    """A vehicle without a gate or a local model works as before."""
    assert opened(EdgeConfig(), card_of(repository)) is None


def test_the_tuning_file_has_the_numbers(repository: Path, tmp_path: Path) -> None:
    """`auto` and missing thresholds are those of the file, and options override them."""
    path = tuning_file(tmp_path, repository)
    reuse = opened(
        config_of(repository, gate="mse", reuse_ms=500.0, local_model="local", cascade=True, c_high=0.8, tuning=path),
        card_of(repository),
    )
    assert reuse is not None
    assert reuse.settings["gate"] == {
        "method": "mse", "threshold": 12.5, "threshold_from": "tuning", "reuse_frames": 30, "reuse_ms": 500.0
    }  # fmt: skip
    local = reuse.settings["local"]
    assert (local["temperature"], local["c_low"], local["c_high"]) == (1.5, 0.05, 0.8)
    assert reuse.settings["tuning"] == str(path)


def test_a_score_that_is_never_certainly_low_needs_one_threshold(repository: Path) -> None:
    """The share of a mask's certain pixels has no lower threshold."""
    config = config_of(repository, local_model="local-masks", cascade=True, c_high=0.9)
    reuse = opened(config, card_of(repository, "reference-masks"))
    assert reuse is not None
    assert reuse.settings["local"]["c_low"] == 0.0


OTHER = Labels(("dark", "light"), ((0, 0, 0), (80, 0, 0)))
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"local_model": "local"}, {"task": "detection"}, "answers classification, model reference detection: choose one"),
    ({"local_model": "local"}, {"labels": OTHER}, "label 1 is 'bright' instead of 'light'"),
    ({"local_model": "lokal"}, {}, "did you mean local"),
    ({"local_model": "local", "cascade": True, "c_low": 0.1}, {}, "give --c-low and --c-high, or tune them with"),
    ({"gate": "mse"}, {}, "there is no tuned threshold for model reference: give --gate-threshold, or tune one with"),
]


@pytest.mark.parametrize(("settings", "changes", "problem"), REFUSED, ids=[each[2][:20] for each in REFUSED])
def test_what_does_not_fit_is_refused(
    repository: Path, settings: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    """The message says what was given and what to do."""
    with pytest.raises(SkylaneError, match=problem):
        opened(config_of(repository, **settings), card_of(repository, **changes))


def test_another_field_of_view_is_refused(repository: Path) -> None:
    """Masks and boxes would be at other places."""
    card = card_of(repository, "reference-masks", height=30)
    with pytest.raises(SkylaneError, match="16×24, model reference-masks of 30×48: they would see different parts"):
        opened(config_of(repository, local_model="local-masks"), card)


def test_a_format_that_no_vehicle_reads_is_refused(repository: Path, tmp_path: Path) -> None:
    """TensorFlow is not installed on a vehicle."""
    write_brightness(tmp_path, "local", 16, 24, steepness=20.0)
    manifest = tmp_path / "local" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("format: onnx", "format: frozen_graph"))
    with pytest.raises(SkylaneError, match="runs onnx or tflite: convert it with `skylane model conv"):
        opened(config_of(tmp_path, local_model="local"), card_of(repository))


def test_a_changed_file_is_refused(repository: Path, tmp_path: Path) -> None:
    """The hash in the manifest protects against incomplete copies."""
    write_brightness(tmp_path, "local", 16, 24, steepness=20.0)
    with (tmp_path / "local" / "model.onnx").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(SkylaneError, match="it was changed or is incomplete"):
        opened(config_of(tmp_path, local_model="local"), card_of(repository))


def test_a_cascade_needs_a_confidence(repository: Path, tmp_path: Path) -> None:
    """A segmentation without it can still be a fallback."""
    write_segmentation(tmp_path, "local", 16, 24, 3)
    manifest = tmp_path / "local" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("confidence: logits\n", ""))
    card = card_of(repository, "reference-masks")
    with pytest.raises(SkylaneError, match="--cascade: local model local: the model has no output confidence"):
        opened(config_of(tmp_path, **CASCADE), card)
    assert opened(config_of(tmp_path, local_model="local"), card) is not None


@pytest.mark.parametrize("of", ["reference", "local"])
def test_a_tuning_of_other_models_is_refused(repository: Path, tmp_path: Path, of: str) -> None:
    """Its thresholds would mean something else."""
    path = tuning_file(
        tmp_path,
        repository,
        **{of: {**yaml.safe_load(tuning_file(tmp_path, repository).read_text())[of], "sha256": "0" * 64}},
    )
    with pytest.raises(SkylaneError, match=f"another file of {of}"):
        opened(config_of(repository, **CASCADE, tuning=path), card_of(repository))
