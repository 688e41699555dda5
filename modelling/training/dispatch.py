"""Training any recipe: which course its kind of answer takes, and how a training is told of in a line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelling.building import shipped_weights
from modelling.recipes import RECIPES, Recipe
from modelling.training import segmentation
from modelling.training.scenes import scene_training
from modelling.training.weights import Weights, fold
from shared.imaging.labels import Labels

Tell = Callable[[float, str], None]  # How much is done, 0 to 1, and a line about it.


def train(
    recipe: Recipe, folder: Path, figures: dict[str, Any], tell: Tell, *, source: Path, labels: Labels
) -> Weights:
    """Train a recipe from the drive's frames; returns folded weights.

    `folder`: for frames, checkpoints and `training.json`. `figures`: of the course, where they are not its own.
    `source`: the repository with the shipped weights of the donor, which a classifier and a detector start from.

    Raises:
        SkylaneError: the recipe cannot be trained, or the donor's weights are not there.
    """
    if recipe.output in scene_training.COURSES:
        donor = shipped_weights(RECIPES[scene_training.DONOR], source)
        course = replace(scene_training.COURSES[recipe.output], **figures)
        return scene_training.train(
            recipe,
            folder,
            course,
            lambda report: tell(report.progress, _told(recipe, report.step, report.loss)),
            donor=donor,
            labels=labels,
        )
    return fold(
        segmentation.train(
            recipe,
            folder,
            segmentation.Course(**figures),
            lambda report: tell(report.progress, _told(recipe, report.step, report.loss) + _judged(report)),
        )
    )


def _told(recipe: Recipe, step: int, loss: float) -> str:
    return f"{recipe.name}: step {step}, loss {loss:.3f}"


def _judged(report: segmentation.Report) -> str:
    has_figures = report.confusion.counts.any()
    return f", mIoU {segmentation.mean_iou(report.confusion):.3f}" if has_figures else ""
