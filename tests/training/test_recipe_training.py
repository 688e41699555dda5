"""The training of a recipe as one command: rendering, training, testing, and the record of all of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelling.architectures.weights import Weights, weights_of
from modelling.recipes import Recipe, recipe
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.labels import read_labels
from shared.inference.model import open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from shared.package_data import shipped
from training import recipe_training
from training.cli import train as command
from training.recipe_training import train
from training.segmentation import TrainingStage


def test_a_training_ends_with_a_test_beside_its_donor_in_every_weather(tmp_path: Path) -> None:
    """Two steps on a few frames; the record has the settings, the validation and the test of both models."""
    tiny, labels = recipe("road-tiny"), read_labels(shipped("configs") / "labels" / "street12.yaml")
    stage = TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=True, whole=False)
    settings = {
        "frames": 2,
        "validation_frames": 1,
        "test_frames": 1,
        "steps": 2,
        "crop_height": 32,
        "crop_width": 48,
        "stages": (stage,),
    }
    progress: list[tuple[float, str]] = []
    source, work = default_root(), tmp_path / "work"
    train(tiny, work, settings, lambda *report: progress.append(report), source=source, labels=labels)
    assert [done for done, text in progress if text == "road-tiny: test"] == [1.0]
    record = json.loads((work / "training.json").read_text(encoding="utf-8"))
    assert (record["frames"], record["steps"], record["best_step"], record["donor"]) == (2, 2, 2, "road-small")
    assert record["test"]["frames"] == {WEATHERS[0]: 1}
    models = record["test"]["models"]
    assert set(models) == {"road-tiny", "road-small"}
    assert models["road-small"]["all"] == models["road-small"][WEATHERS[0]]
    with open_local(Repository(work / "models").find("road-tiny"), Placement(device="cpu")) as model:
        assert len(model.warm_up(1)) == 1


def test_the_command_builds_what_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options reach the training, and the formats that another format's file does not hold are built from the weights."""
    calls = []

    def trained(
        each: Recipe, folder: Path, settings: dict[str, Any], *_: object, source: Path, **__: object
    ) -> Weights:
        calls.append((each.seed, folder, settings, source))
        return weights_of(each.network(folded=True))

    monkeypatch.setattr(recipe_training, "train", trained)
    models = tmp_path / "models"
    options = ("--seed", "7", "--minutes", "0.5", "--format", "frozen_graph", "--name", "mine", "--models", str(models))
    done = CliRunner().invoke(command, ["car-tiny", *options], catch_exceptions=False)
    assert done.stdout == f"built {models / 'mine'}\n"
    assert calls == [(7, Path("runs/training/car-tiny"), {"seed": 7, "minutes": 0.5}, models)]
    manifest = Repository(models).find("mine").manifest
    assert (manifest.format, manifest.trained) == ("frozen_graph", True)
    assert CliRunner().invoke(command, ["car-tiny", "--name", "mine"]).exit_code == 2
