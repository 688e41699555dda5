"""Training a recipe's network on the synthetic drive, from frames not yet rendered to weights with their figures."""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.evaluation.confusion import Confusion
from modelling.frameworks import keras
from modelling.recipes import Recipe
from modelling.training.crops import Batch, CropLoader
from modelling.training.dataset import (
    HEIGHT,
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    WIDTH,
    rendering,
    training_views,
    validation_views,
)
from modelling.training.frame_store import FrameStore
from modelling.training.trainer import LearningRateSchedule, Trainer, evaluate, segmentation_loss
from modelling.training.weights import Weights, assign, write_weights
from rosbag_tools.drive.scene import CLASSES
from shared.errors import SkylaneError

NONE = CLASSES.index("none")  # mIoU leaves it out: it is what belongs to no other.

# By class id. How much a pixel counts in the loss: about (0.05 / the class's share of pixels) ** 0.35, at most 3.
_CLASS_WEIGHTS = np.array([0.55, 1.0, 0.6, 1.5, 1.05, 0.65, 1.5, 3.0, 1.1, 0.95, 1.0, 1.0], np.float32)
# How much a crop is preferred for what it holds of a class.
_CLASS_VALUES = np.array([0, 0.2, 0, 1.0, 0.1, 0, 1.5, 2.0, 0.2, 0.3, 0.4, 0.1], np.float32)


class TrainingError(SkylaneError):
    """A recipe that cannot be trained."""


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """A part of a training. `until`: the share of the training that is done at its end."""

    until: float
    normalise_by_batch: bool  # Else by the running statistics, which no longer change.
    thinned: bool  # As `modelling.architectures.mobilenet_v3.trunk` tells.
    halved: float  # As `modelling.training.crops.CropLoader` tells.
    weighted: bool  # Whether rare classes count more; finds them sooner, but draws them too large.
    whole: bool  # One whole frame a step, not a batch of crops: what is common is as common as in use.


STAGES = (
    # From random weights: finds the statistics.
    TrainingStage(until=0.1, normalise_by_batch=True, thinned=True, halved=0.4, weighted=True, whole=False),
    # Crops differ so much that a batch's own statistics blur what they show; and a thinned step costs 0.4 of a full one.
    TrainingStage(until=0.7, normalise_by_batch=False, thinned=True, halved=0.4, weighted=True, whole=False),
    TrainingStage(until=0.9, normalise_by_batch=False, thinned=True, halved=0.0, weighted=False, whole=True),
    TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=False, whole=True),
)


@dataclass(frozen=True, slots=True)
class SegmentationSettings:
    """The figures of a training. With the seed they say which weights come out, up to the machine's rounding.

    `minutes`: where the machine is too slow for all the steps by then, the rate falls faster and the training ends.
    """

    seed: int = 1
    steps: int = 14_000
    minutes: float = math.inf
    frames: int = 1400
    validation_frames: int = 40
    batch: int = 4
    crop_height: int = 288
    crop_width: int = 416
    peak_rate: float = 1.5e-3
    steps_between_validations: int = 800
    stages: tuple[TrainingStage, ...] = STAGES


@dataclass(frozen=True, slots=True)
class Frames:
    """What to train on and what to validate on."""

    training: FrameStore
    validation: FrameStore


@dataclass(frozen=True, slots=True)
class Report:
    """How far a training has come. `progress` is 0 to 1; the confusion is that of the last validation."""

    step: int
    progress: float
    loss: float
    confusion: Confusion


def mean_iou(confusion: Confusion) -> float:
    """The mean intersection over union of the classes but `none`, of those that were there."""
    return float(np.nanmean(confusion.intersection_over_union()[:NONE]))


def train(
    recipe: Recipe,
    folder: Path,
    course: SegmentationSettings,
    progress: Callable[[Report], None],
    *,
    start: Weights | None = None,
) -> Weights:
    """Render the frames, train the recipe's network on them, and return its best weights, not folded.

    `start`: weights to go on from, a checkpoint's or shipped ones unfolded; random ones without.

    `folder` gets the frames (2.4 MB each), `checkpoint.npz` with the best weights so far,
    and `training.json` with the figures. `progress` is called after every step.

    Raises:
        TrainingError: the recipe takes other pictures, or other classes, than the drive gives.
    """
    if (recipe.height, recipe.width, recipe.class_names) != (HEIGHT, WIDTH, CLASSES):
        raise TrainingError(
            f"{recipe.name} is {recipe.height}×{recipe.width} with {len(recipe.class_names)} classes and the drive's "
            f"frames are {HEIGHT}×{WIDTH} with {len(CLASSES)}: train road-small or road-large"
        )
    views = training_views(course.frames)
    checks = validation_views(course.validation_frames, (HELD_OUT_WEATHER, *TRAINING_WEATHERS))
    with rendering(checks, folder / "validation") as validation, rendering(views, folder / "frames") as training:
        validation.wait(len(checks))
        training.wait(len(views))
        return train_on(recipe, Frames(training.store, validation.store), folder, course, progress, start=start)


def train_on(
    recipe: Recipe,
    frames: Frames,
    folder: Path,
    course: SegmentationSettings,
    progress: Callable[[Report], None],
    *,
    start: Weights | None = None,
) -> Weights:
    """Train on frames that are rendered, or being rendered; otherwise as `train`. `start`: weights to go on from."""
    keras.utils.set_random_seed(course.seed)
    judge = Judge(recipe, frames.validation, folder, course)
    schedule = LearningRateSchedule(course.peak_rate)
    weights = start
    step, done = 0, 0.0
    for number, stage in enumerate(course.stages):
        network = recipe.thinned_network() if stage.thinned else recipe.network(folded=False)
        if weights is not None:
            assign(network, weights, f"the checkpoint for {recipe.name}")
        class_weights = _CLASS_WEIGHTS if stage.weighted else np.ones_like(_CLASS_WEIGHTS)
        trainer = Trainer(
            network, schedule, segmentation_loss(class_weights), normalise_by_batch=stage.normalise_by_batch
        )
        with _loader(frames.training, course, stage, course.seed + number) as crops:
            while done < stage.until:
                loss = trainer.train_on(next(crops), done)
                step += 1
                done = max(step / course.steps, judge.minutes / course.minutes)
                if step % course.steps_between_validations == 0 or done >= stage.until:
                    weights = trainer.mean_weights()
                    judge.judge(weights, step)
                progress(Report(step, min(1.0, done), loss, judge.last))
    return judge.best_weights


def _loader(store: FrameStore, course: SegmentationSettings, stage: TrainingStage, seed: int) -> CropLoader:
    rows, columns = store.labels.shape[1:]
    return CropLoader(
        store,
        batch=1 if stage.whole else course.batch,
        # A thinned network takes even maps only, down to the eighth.
        height=rows // 16 * 16 if stage.whole else course.crop_height,
        width=columns // 16 * 16 if stage.whole else course.crop_width,
        value=_CLASS_VALUES,
        halved=0.0 if stage.whole else stage.halved,
        seed=seed,
    )


class Judge:
    """Validates weights and keeps the best, in memory and in the training's folder."""

    def __init__(self, recipe: Recipe, validation: FrameStore, folder: Path, course: SegmentationSettings) -> None:
        self.last = Confusion.empty(len(CLASSES))
        self.best_weights: Weights = {}
        self._best = -1.0
        self._recipe = recipe
        self._network = recipe.network(folded=False)
        self._validation = validation
        self._folder = folder
        self._course = course
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """Since the training began."""
        return (time.monotonic() - self._began) / 60

    def judge(self, weights: Weights, step: int) -> None:
        """Validate a step's weights."""
        assign(self._network, weights, "the running mean")
        self.last = evaluate(self._network, _whole_frames(self._validation), len(CLASSES))
        if mean_iou(self.last) > self._best:
            self._best = mean_iou(self.last)
            self.best_weights = weights
            write_weights(self._folder / "checkpoint.npz", weights)
            figures = json.dumps(self._figures(step), indent=2)
            (self._folder / "training.json").write_text(figures + "\n", encoding="utf-8")

    def _figures(self, step: int) -> dict[str, Any]:
        return {
            "model": self._recipe.name,
            **{key: value for key, value in asdict(self._course).items() if value != math.inf},
            "best_step": step,
            "wall_time_minutes": round(self.minutes),
            "training_weathers": TRAINING_WEATHERS,
            "held_out_weather": HELD_OUT_WEATHER,
            "validation": figures_of(self.last),
            "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
            "processor": platform.machine(),
        }


def _whole_frames(store: FrameStore) -> Iterator[Batch]:
    for index in store.ready_indices():
        yield store.pictures[index : index + 1], store.labels[index : index + 1]


def figures_of(confusion: Confusion) -> dict[str, Any]:
    """The figures of a confusion by class name, rounded, for a JSON file."""
    of_class: npt.NDArray[np.float64] = confusion.intersection_over_union()
    return {
        "mean_iou": round(mean_iou(confusion), 4),
        "pixel_accuracy": round(confusion.pixel_accuracy, 4),
        "iou": {name: round(float(iou), 4) for name, iou in zip(CLASSES, of_class, strict=True)},
    }
