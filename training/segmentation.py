"""Trains a segmentation network on the synthetic drive: renders frames, trains, and keeps the best weights."""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from modelling.architectures.weights import Weights, assign, weights_of
from modelling.evaluation.metrics import Confusion
from modelling.frameworks import keras
from modelling.recipes import Recipe
from rosbag_tools.drive.drive_views import (
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    DriveView,
    generator,
    photographed_view,
    training_views,
    validation_views,
)
from rosbag_tools.drive.scene import CLASSES, WEATHERS
from shared.errors import SkylaneError
from shared.files import write_file
from shared.imaging.geometry import apply, plan, to_source
from shared.inference.model import Model
from training.crops import Batch, CropLoader
from training.dataset import SIZES, FrameStore, render_frames
from training.trainer import LearningRateSchedule, Trainer, TrainingProgress, segmentation_loss, validate
from training.weights import with_donor_weights, write_weights

# The weight of a pixel in the loss by class id: about (0.05 / the class's share of pixels) ** 0.35, at most 3.
_CLASS_WEIGHTS = np.array([0.55, 1.0, 0.6, 1.5, 1.05, 0.65, 1.5, 3.0, 1.1, 0.95, 1.0, 1.0], np.float32)
# The value of a pixel for choosing a crop, by class id.
_CLASS_VALUES = np.array([0, 0.2, 0, 1.0, 0.1, 0, 1.5, 2.0, 0.2, 0.3, 0.4, 0.1], np.float32)


class TrainingError(SkylaneError):
    """A recipe cannot be trained."""


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """A part of a training."""

    until: float  # The finished share of the training at the end of the stage.
    normalise_by_batch: bool  # False normalises by the running statistics, which then stay constant.
    thinned: bool  # See `modelling.architectures.mobilenet_v3.trunk`.
    halved: float  # See `training.crops.CropLoader`.
    weighted: bool  # Give rare classes a higher weight; finds them earlier, but overestimates their size.
    whole: bool  # One whole frame per step instead of a batch of crops, so that classes are as frequent as in use.


STAGES = (
    # Starts from random weights and estimates the running statistics.
    TrainingStage(until=0.1, normalise_by_batch=True, thinned=True, halved=0.4, weighted=True, whole=False),
    # Crops vary too much for statistics per batch; a thinned step costs 0.4 of a full one.
    TrainingStage(until=0.7, normalise_by_batch=False, thinned=True, halved=0.4, weighted=True, whole=False),
    TrainingStage(until=0.9, normalise_by_batch=False, thinned=True, halved=0.0, weighted=False, whole=True),
    TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=False, whole=True),
)


# For a network without dilated convolutions, which has no thinned variant, and that starts from a donor's weights.
SMALL_STAGES = (
    TrainingStage(until=0.6, normalise_by_batch=False, thinned=False, halved=0.0, weighted=True, whole=False),
    TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=False, whole=True),
)


@dataclass(frozen=True, slots=True)
class SegmentationSettings:
    """The settings of a training, which determine the weights up to the machine's rounding.

    If the machine cannot make all steps within `minutes`, the learning rate falls faster and the training ends by then.
    `batch` counts crops, and `whole_batch` whole frames. The weights of `donor`, a trained recipe, initialise the layers of
    equal name and shape.
    """

    seed: int = 1
    steps: int = 14_000
    minutes: float = math.inf
    frames: int = 1400
    validation_frames: int = 40
    test_frames: int = 120
    batch: int = 4
    whole_batch: int = 1
    crop_height: int = 288
    crop_width: int = 416
    peak_rate: float = 1.5e-3
    steps_between_validations: int = 800
    stages: tuple[TrainingStage, ...] = STAGES
    donor: str | None = None


_SETTINGS = {
    "road-tiny": SegmentationSettings(
        steps=12_000,
        frames=1400,
        batch=4,
        whole_batch=2,
        crop_height=208,
        crop_width=320,
        peak_rate=2e-3,
        steps_between_validations=500,
        stages=SMALL_STAGES,
        donor="road-small",
    )
}


def default_settings(recipe: Recipe) -> SegmentationSettings:
    """Returns the settings that a recipe is trained with if no others are given."""
    return _SETTINGS.get(recipe.name, SegmentationSettings())


def train(
    recipe: Recipe,
    folder: Path,
    settings: SegmentationSettings,
    on_progress: Callable[[TrainingProgress], None],
    *,
    donor: Weights | None = None,
) -> Weights:
    """Renders the frames, trains the recipe's network on them, and returns its best weights, not folded.

    Args:
        recipe: The recipe.
        folder: The folder for the frames (four bytes per pixel), `checkpoint.npz` with the best weights so far, and `training.json`
            with the settings and the validation results.
        settings: The settings of the training.
        on_progress: Called after every step.
        donor: Unfolded weights that initialise the layers of equal name and shape.

    Raises:
        TrainingError: the recipe's image size or classes are not those of the drive.
    """
    if (recipe.height, recipe.width) not in SIZES or recipe.class_names != CLASSES:
        sizes = " or ".join(f"{height}×{width}" for height, width in SIZES)
        raise TrainingError(
            f"{recipe.name} is {recipe.height}×{recipe.width} with {len(recipe.class_names)} classes and the drive's "
            f"frames are {sizes} with {len(CLASSES)}: train road-tiny, road-small or road-large"
        )
    views = training_views(settings.frames)
    checks = validation_views(settings.validation_frames, (HELD_OUT_WEATHER, *TRAINING_WEATHERS))
    validation, training = (
        render_frames(each, folder / name, height=recipe.height, width=recipe.width)
        for each, name in ((checks, "validation"), (views, "frames"))
    )
    return train_on(recipe, folder, settings, on_progress, training=training, validation=validation, donor=donor)


def train_on(
    recipe: Recipe,
    folder: Path,
    settings: SegmentationSettings,
    on_progress: Callable[[TrainingProgress], None],
    *,
    training: FrameStore,
    validation: FrameStore,
    donor: Weights | None = None,
) -> Weights:
    """Trains on rendered frames; see `train`."""
    keras.utils.set_random_seed(settings.seed)
    validator = _Validator(recipe, validation, folder, settings)
    schedule = LearningRateSchedule(settings.peak_rate)
    weights = donor or {}
    step, done = 0, 0.0
    for number, stage in enumerate(settings.stages):
        network = recipe.network(folded=False, thinned=True) if stage.thinned else recipe.network(folded=False)
        assign(network, with_donor_weights(weights_of(network), weights), f"the checkpoint for {recipe.name}")
        class_weights = _CLASS_WEIGHTS if stage.weighted else np.ones_like(_CLASS_WEIGHTS)
        trainer = Trainer(
            network, schedule, segmentation_loss(class_weights), normalise_by_batch=stage.normalise_by_batch
        )
        with _loader(training, settings, stage, settings.seed + number) as crops:
            while done < stage.until:
                loss = trainer.train_on(next(crops), done)
                step += 1
                done = max(step / settings.steps, validator.minutes / settings.minutes)
                if step % settings.steps_between_validations == 0 or done >= stage.until:
                    weights = trainer.mean_weights()
                    validator.validate(weights, step)
                on_progress(TrainingProgress(step, min(1.0, done), loss, validator.last_iou))
    return validator.best_weights


def _loader(store: FrameStore, settings: SegmentationSettings, stage: TrainingStage, seed: int) -> CropLoader:
    rows, columns = store.labels.shape[1:]
    return CropLoader(
        store,
        batch=settings.whole_batch if stage.whole else settings.batch,
        # A thinned network needs even map sizes down to the eighth.
        height=rows // 16 * 16 if stage.whole else settings.crop_height,
        width=columns // 16 * 16 if stage.whole else settings.crop_width,
        value=_CLASS_VALUES,
        halved=0.0 if stage.whole else stage.halved,
        seed=seed,
    )


class _Validator:
    """Validates weights, and keeps the best ones in memory and in the training's folder."""

    def __init__(self, recipe: Recipe, validation: FrameStore, folder: Path, settings: SegmentationSettings) -> None:
        self.last_iou: float | None = None
        self.best_weights: Weights = {}
        self._best = -1.0
        self._recipe = recipe
        self._network = recipe.network(folded=False)
        self._validation = validation
        self._folder = folder
        self._settings = settings
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """Minutes since the training began."""
        return (time.monotonic() - self._began) / 60

    def validate(self, weights: Weights, step: int) -> None:
        """Validates the weights of a step."""
        assign(self._network, weights, "the running mean")
        confusion = validate(self._network, _whole_frames(self._validation), len(CLASSES))
        self.last_iou = confusion.mean_iou(CLASSES)
        if self.last_iou > self._best:
            self._best = self.last_iou
            self.best_weights = weights
            write_weights(self._folder / "checkpoint.npz", weights)
            document = json.dumps(self._document(step, confusion), indent=2)
            write_file(self._folder / "training.json", document + "\n")

    def _document(self, step: int, confusion: Confusion) -> dict[str, Any]:
        return {
            "model": self._recipe.name,
            **{key: value for key, value in asdict(self._settings).items() if value not in (math.inf, None)},
            "best_step": step,
            "wall_time_minutes": round(self.minutes),
            "training_weathers": TRAINING_WEATHERS,
            "held_out_weather": HELD_OUT_WEATHER,
            "validation": metrics(confusion),
            "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
            "processor": platform.machine(),
        }


def _whole_frames(store: FrameStore) -> Iterator[Batch]:
    for index in range(len(store.pictures)):
        yield store.pictures[index : index + 1], store.labels[index : index + 1]


_UNSEEN = CLASSES.index("none")  # The class of pixels outside a model's crop.


def scores_by_weather(
    models: Sequence[Model], views: Sequence[DriveView], on_view: Callable[[int], None] = lambda _done: None
) -> dict[str, Any]:
    """Returns the metrics of models of the drive's classes on the same images, as plain types for a JSON file.

    The result has `seeds`, the first and the last one, and for each model its metrics by weather and over all weathers.
    `on_view` is called after each view.
    """
    confusions = {model.card.name: dict.fromkeys((*WEATHERS, "all"), Confusion.empty(len(CLASSES))) for model in models}
    for done, view in enumerate(views, start=1):
        frame, image = photographed_view(view, generator(view))
        rows, columns = frame.class_ids.shape
        for model in models:
            card = model.card
            geometry = plan(card.resize, rows, columns, card.height, card.width)
            mask = model.predict(apply(image, geometry)[np.newaxis])[0]
            predicted = to_source(mask, geometry, _UNSEEN)
            for group in (view.weather, "all"):
                by_group = confusions[card.name]
                by_group[group] = by_group[group].with_masks(frame.class_ids, predicted)
        on_view(done)
    weathers = {view.weather for view in views}
    return {
        "seeds": [min(view.seed for view in views), max(view.seed for view in views)],
        "frames": {name: sum(view.weather == name for view in views) for name in WEATHERS if name in weathers},
        "height": rows,
        "width": columns,
        "models": {
            name: {group: metrics(confusion) for group, confusion in by_group.items() if confusion.counts.any()}
            for name, by_group in confusions.items()
        },
    }


def metrics(confusion: Confusion) -> dict[str, Any]:
    """Returns mean IoU, pixel accuracy and IoU by class of the drive, as plain types; None for an absent class."""
    by_class = zip(CLASSES, confusion.intersection_over_union().tolist(), strict=True)
    return {
        "mean_iou": round(confusion.mean_iou(CLASSES), 4),
        "pixel_accuracy": round(confusion.pixel_accuracy, 4),
        "iou": {name: None if np.isnan(iou) else round(iou, 4) for name, iou in by_class},
    }
