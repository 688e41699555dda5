"""Trains any recipe by the training for its kind of output."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelling.building import shipped_weights
from modelling.recipes import RECIPES, Recipe
from modelling.training import segmentation
from modelling.training.scenes import scene_training
from modelling.training.trainer import TrainingProgress
from modelling.training.weights import Weights, fold, unfold
from shared.imaging.labels import Labels


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

    if recipe.output in scene_training.DEFAULT_SETTINGS:
        donor = unfolded_weights(scene_training.DONOR, source)
        scene_settings = replace(scene_training.DEFAULT_SETTINGS[recipe.output], **settings)
        return scene_training.train(recipe, folder, scene_settings, report, donor=donor, labels=labels)
    chosen = replace(segmentation.default_settings(recipe), **settings)
    start = None if chosen.donor is None else unfolded_weights(chosen.donor, source)
    return fold(segmentation.train(recipe, folder, chosen, report, donor=start))


def unfolded_weights(name: str, source: Path) -> Weights:
    """Returns the built-in weights of a trained recipe in the form for training."""
    donor = RECIPES[name]
    return unfold(shipped_weights(donor, source), donor.network(folded=False))
