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

from modelling.confusion import Confusion
from modelling.crops import Batch, CropLoader
from modelling.dataset import HELD_OUT_WEATHER, TRAINING_WEATHERS, rendering, training_views, validation_views
from modelling.frame_store import FrameStore
from modelling.frameworks import keras
from modelling.recipes import Recipe
from modelling.trainer import Schedule, Trainer, evaluate
from modelling.weights import Weights, assign, weights_of, write_weights
from rosbag_tools.scene import CLASSES

NONE = CLASSES.index("none")  # mIoU leaves it out: it is what belongs to no other.

# By class id. How much a pixel counts in the loss: about (0.05 / the class's share of pixels) ** 0.35, at most 3.
_CLASS_WEIGHTS = np.array([0.55, 1.0, 0.6, 1.5, 1.05, 0.65, 1.5, 3.0, 1.1, 0.95, 1.0, 1.0], np.float32)
# How much a crop is preferred for holding a class.
_CLASS_VALUES = np.array([0, 0.2, 0.1, 0.4, 0.3, 0, 0.6, 2.0, 0.5, 0.8, 0.9, 0], np.float32)


@dataclass(frozen=True, slots=True)
class Course:
    """The figures of a training. With the seed they say which weights come out, up to the machine's rounding.

    `minutes`: where the machine is too slow for all the steps by then, the rate falls faster and the training ends.
    """

    seed: int = 1
    steps: int = 3000
    minutes: float = math.inf
    frames: int = 1400
    validation_frames: int = 40
    batch: int = 8
    crop_height: int = 320
    crop_width: int = 480
    peak_rate: float = 2e-3
    final_rate: float = 0.0
    normalise_by_batch: bool = True
    thinned: bool = False
    steps_between_validations: int = 250


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


def train(recipe: Recipe, folder: Path, course: Course, progress: Callable[[Report], None]) -> Weights:
    """Render the frames, train the recipe's network on them, and return its best weights, not folded.

    `folder` gets the frames (2.4 MB each), `checkpoint.npz` with the best weights so far, `latest.npz` with the last,
    and `training.json` with the figures. `progress` is called after every step.
    """
    views = training_views(course.frames)
    checks = validation_views(course.validation_frames, (HELD_OUT_WEATHER, *TRAINING_WEATHERS))
    with rendering(checks, folder / "validation") as validation, rendering(views, folder / "frames") as training:
        validation.wait(len(checks))
        training.wait(len(views))
        return train_on(recipe, Frames(training.store, validation.store), folder, course, progress)


def train_on(
    recipe: Recipe,
    frames: Frames,
    folder: Path,
    course: Course,
    progress: Callable[[Report], None],
    *,
    start: Weights | None = None,
) -> Weights:
    """Train on frames that are rendered, or being rendered; otherwise as `train`. `start`: weights to go on from."""
    began = time.monotonic()
    keras.utils.set_random_seed(course.seed)
    network = recipe.thinned_network() if course.thinned else recipe.network(folded=False)
    if start is not None:
        assign(network, start, f"the checkpoint for {recipe.name}")
    judged = recipe.network(folded=False)
    trainer = Trainer(
        network,
        Schedule(course.peak_rate, course.final_rate),
        _CLASS_WEIGHTS,
        normalise_by_batch=course.normalise_by_batch,
    )
    best, best_weights = Confusion.empty(len(CLASSES)), weights_of(network)
    confusion = best
    done = 0.0
    with CropLoader(
        frames.training,
        batch=course.batch,
        height=course.crop_height,
        width=course.crop_width,
        value=_CLASS_VALUES,
        seed=course.seed,
    ) as crops:
        for batch in crops:
            loss = trainer.train_on(batch, done)
            done = max(trainer.step / course.steps, (time.monotonic() - began) / (60 * course.minutes))
            if trainer.step % course.steps_between_validations == 0 or done >= 1:
                mean = trainer.mean_weights()
                assign(judged, mean, "the running mean")
                confusion = evaluate(judged, _whole_frames(frames.validation), len(CLASSES))
                write_weights(folder / "latest.npz", weights_of(network))
                if not best.counts.any() or mean_iou(confusion) >= mean_iou(best):
                    best, best_weights = confusion, mean
                    write_weights(folder / "checkpoint.npz", best_weights)
                    figures = _figures(recipe, course, trainer.step, time.monotonic() - began, best)
                    (folder / "training.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
            progress(Report(trainer.step, min(1.0, done), loss, confusion))
            if done >= 1:
                return best_weights
    raise AssertionError("the crops ended")


def _whole_frames(store: FrameStore) -> Iterator[Batch]:
    for index in store.ready_indices():
        yield store.pictures[index : index + 1], store.labels[index : index + 1]


def _figures(recipe: Recipe, course: Course, step: int, seconds: float, best: Confusion) -> dict[str, Any]:
    return {
        "model": recipe.name,
        **{key: value for key, value in asdict(course).items() if value != math.inf},
        "best_step": step,
        "wall_time_s": round(seconds),
        "training_weathers": TRAINING_WEATHERS,
        "held_out_weather": HELD_OUT_WEATHER,
        "validation": figures_of(best),
        "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
        "processor": platform.machine(),
    }


def figures_of(confusion: Confusion) -> dict[str, Any]:
    """The figures of a confusion by class name, rounded, for a JSON file."""
    of_class: npt.NDArray[np.float64] = confusion.intersection_over_union()
    return {
        "mean_iou": round(mean_iou(confusion), 4),
        "pixel_accuracy": round(confusion.pixel_accuracy, 4),
        "iou": {name: round(float(iou), 4) for name, iou in zip(CLASSES, of_class, strict=True)},
    }
