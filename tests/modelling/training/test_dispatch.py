"""The training of a recipe as one command: rendering, training, testing, and the record of all of it."""

import json
from pathlib import Path

from modelling.building import build
from modelling.recipes import recipe
from modelling.training.dispatch import train
from modelling.training.segmentation import TrainingStage
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.labels import read_labels
from shared.inference.model import open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from shared.package_data import shipped


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
    weights = train(tiny, work, settings, lambda *report: progress.append(report), source=source, labels=labels)
    assert [done for done, text in progress if text == "road-tiny: test"] == [1.0]
    record = json.loads((work / "training.json").read_text(encoding="utf-8"))
    assert (record["frames"], record["steps"], record["best_step"], record["donor"]) == (2, 2, 2, "road-small")
    assert record["test"]["frames"] == {WEATHERS[0]: 1}
    models = record["test"]["models"]
    assert set(models) == {"road-tiny", "road-small"}
    assert models["road-small"]["all"] == models["road-small"][WEATHERS[0]]
    build(tiny, tmp_path / "models", labels, weights)
    with open_local(Repository(tmp_path / "models").find("road-tiny"), Placement(device="cpu")) as model:
        assert len(model.warm_up(1)) == 1
