"""Trains any recipe by the training for its kind of output."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloud.models.opening import open_model
from modelling.architectures.weights import Weights
from modelling.building import build, shipped_weights
from modelling.recipes import RECIPES, Recipe
from rosbag_tools.drive.drive_views import DriveView, unseen_views
from shared.files import write_file
from shared.imaging.labels import Labels
from shared.models.manifest import Placement
from shared.models.repository import Repository, StoredModel
from training import scene_training, segmentation
from training.scene_tasks import TASKS
from training.segmentation import scores_by_weather
from training.trainer import TrainingProgress
from training.weights import fold, unfold


def train(
    recipe: Recipe,
    folder: Path,
    settings: dict[str, Any],
    on_progress: Callable[[float, str], None],
    *,
    source: Path,
    labels: Labels,
) -> Weights:
    """Trains a recipe on frames of the synthetic drive; returns folded weights.

    Args:
        recipe: The recipe.
        folder: The folder for frames, checkpoints and `training.json`.
        settings: Values that replace defaults of SegmentationSettings or SceneTrainingSettings.
        on_progress: Called with the finished share of the training (0 to 1) and a line of text.
        source: The repository with the built-in weights of the donor, the model whose weights initialise the network.
        labels: The names and colours of the drive's classes.

    Raises:
        SkylaneError: the recipe cannot be trained, or the donor's weights are missing.
    """

    def report(progress: TrainingProgress) -> None:
        iou = "" if progress.mean_iou is None else f", mIoU {progress.mean_iou:.3f}"
        on_progress(progress.done, f"{recipe.name}: step {progress.step}, loss {progress.loss:.3f}{iou}")

    if recipe.weights_of:
        raise segmentation.TrainingError(
            f"{recipe.name} has the weights of {recipe.weights_of}, so it cannot be trained: train {recipe.weights_of}, then "
            f"run `skylane model build {recipe.name}`"
        )
    if recipe.class_names in TASKS:
        donor = unfolded_weights(scene_training.DONOR, source)
        scene_settings = replace(TASKS[recipe.class_names].settings, **settings)
        return scene_training.train(recipe, folder, scene_settings, report, donor=donor, source=source, labels=labels)
    chosen = replace(segmentation.default_settings(recipe), **settings)
    start = None if chosen.donor is None else unfolded_weights(chosen.donor, source)
    weights = fold(segmentation.train(recipe, folder, chosen, report, donor=start))
    build(recipe, folder / "models", labels, weights, recipe.formats[:1])
    models = [Repository(folder / "models").find(recipe.name)]
    if chosen.donor is not None:
        models.append(Repository(source).find(chosen.donor))
    views = unseen_views(chosen.test_frames)
    _write_test(folder / "training.json", models, views, lambda done: on_progress(done, f"{recipe.name}: test"))
    return weights


def _write_test(
    path: Path, models: Sequence[StoredModel], views: Sequence[DriveView], on_progress: Callable[[float], None]
) -> None:
    """Adds the results of models on unseen drives to a training's record."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_model(each, None, Placement(device="cpu"))) for each in models]
        test = scores_by_weather(opened, views, lambda done: on_progress(done / len(views)))
    document = json.loads(path.read_text(encoding="utf-8"))
    write_file(path, json.dumps({**document, "test": test}, indent=2) + "\n")


def unfolded_weights(name: str, source: Path) -> Weights:
    """Returns the built-in weights of a trained recipe in the form for training."""
    donor = RECIPES[name]
    return unfold(shipped_weights(donor, source), donor.network(folded=False))
