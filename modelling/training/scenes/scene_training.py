"""Trains the weather classifier and the object detector on scenes of the synthetic drive."""

import json
import math
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cloud.models.loader import ModelLoader
from modelling.building import build
from modelling.frameworks import keras
from modelling.recipes import Output, Recipe
from modelling.training.dataset import HELD_OUT_WEATHER, training_views, validation_views
from modelling.training.scenes.losses import object_loss, weather_loss
from modelling.training.scenes.object_batches import ObjectLoader
from modelling.training.scenes.scene_store import SceneStore
from modelling.training.scenes.validation import validate_model
from modelling.training.scenes.weather_batches import WeatherLoader
from modelling.training.trainer import LearningRateSchedule, Loss, Trainer, TrainingProgress
from modelling.training.weights import Weights, assign, fold, weights_of, with_donor_weights, write_weights
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.labels import Labels
from shared.inference.placement import Placement
from shared.models.repository import Repository

DONOR = "road-small"  # The model whose weights initialise the networks.

_STEPS_BETWEEN_CHECKPOINTS = 200


@dataclass(frozen=True, slots=True)
class SceneTrainingSettings:
    """The settings of a training, which determine the weights up to the machine's rounding.

    If the machine cannot make all steps within `minutes`, the learning rate falls faster and the training ends by then.
    `crop` is the height and width of the detector's crops; the classifier uses whole images at half size.
    """

    steps: int
    batch: int
    peak_rate: float
    seed: int = 1
    minutes: float = math.inf
    frames: int = 2000
    validation_frames: int = 200
    crop: tuple[int, int] | None = None


class _Batches(AbstractContextManager[Any], Protocol):
    def __next__(self) -> Any: ...


DEFAULT_SETTINGS = {
    Output.PROBABILITIES: SceneTrainingSettings(steps=900, batch=16, peak_rate=1e-3),
    Output.OBJECTS: SceneTrainingSettings(steps=3500, batch=4, peak_rate=2e-3, crop=(256, 416)),
}


def train(
    recipe: Recipe,
    folder: Path,
    settings: SceneTrainingSettings,
    on_progress: Callable[[TrainingProgress], None],
    *,
    donor: Weights,
    labels: Labels,
) -> Weights:
    """Renders the scenes, trains the recipe's network on them, and returns its folded weights.

    Args:
        recipe: The recipe.
        folder: The folder for the scenes (0.45 MB each), the built model in `models`, and `training.json` with the
            settings and the validation results.
        settings: The settings of the training.
        on_progress: Called after every step.
        donor: The weights of DONOR, not folded.
        labels: The names and colours of the drive's classes.
    """
    validation = SceneStore.render(validation_views(settings.validation_frames, WEATHERS), folder / "validation")
    training = SceneStore.render(training_views(settings.frames, weathers=WEATHERS), folder / "scenes")
    began = time.monotonic()
    steps = 0

    def report(progress: TrainingProgress) -> None:
        nonlocal steps
        steps = progress.step
        on_progress(progress)

    weights = fold(train_network(recipe, training, folder, settings, report, start=donor))
    minutes = (time.monotonic() - began) / 60
    build(recipe, folder / "models", labels, weights)
    with ModelLoader(Repository(folder / "models"), Placement(device="cpu")).open(recipe.name) as model:
        metrics = validate_model(model, recipe.output, validation)
    document = _document(recipe, replace(settings, steps=steps), minutes, metrics)
    (folder / "training.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return weights


def train_network(
    recipe: Recipe,
    store: SceneStore,
    folder: Path,
    settings: SceneTrainingSettings,
    on_progress: Callable[[TrainingProgress], None],
    *,
    start: Weights,
) -> Weights:
    """Trains the recipe's network on a store; returns the running mean of the final weights, not folded.

    The result is always the last weights, when the learning rate is 0. No checkpoint is selected by its validation, so the
    validation results are unbiased.

    Args:
        recipe: The recipe.
        store: The scenes.
        folder: The folder for `checkpoint.npz`, which is written periodically.
        settings: The settings of the training.
        on_progress: Called after every step.
        start: Unfolded weights of another network or of a checkpoint. They initialise the layers of equal name and shape.
    """
    keras.utils.set_random_seed(settings.seed)
    network = recipe.network(folded=False)
    assign(network, with_donor_weights(weights_of(network), start), "the start")
    # The donor's running statistics already fit, and a batch of a few scenes varies too much for its own.
    schedule = LearningRateSchedule(settings.peak_rate)
    trainer = Trainer(network, schedule, _LOSSES[recipe.output], normalise_by_batch=False)
    began = time.monotonic()
    step, done = 0, 0.0
    with _loader(store, settings) as batches:
        while done < 1:
            loss = trainer.train_on(next(batches), done)
            step += 1
            done = max(step / settings.steps, (time.monotonic() - began) / 60 / settings.minutes)
            if step % _STEPS_BETWEEN_CHECKPOINTS == 0 or done >= 1:
                write_weights(folder / "checkpoint.npz", trainer.mean_weights())
            on_progress(TrainingProgress(step, min(1.0, done), loss))
    return trainer.mean_weights()


_LOSSES: dict[Output, Loss] = {Output.PROBABILITIES: weather_loss, Output.OBJECTS: object_loss}


def _document(
    recipe: Recipe, settings: SceneTrainingSettings, minutes: float, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Returns the settings and results of a training, as plain types."""
    views = training_views(settings.frames, weathers=WEATHERS)
    checks = validation_views(settings.validation_frames, WEATHERS)
    held_out = recipe.output is Output.OBJECTS
    return {
        "model": recipe.name,
        **{key: value for key, value in asdict(settings).items() if value not in (math.inf, None)},
        "wall_time_minutes": round(minutes),
        "donor": DONOR,
        "training_seeds": [views[0].seed, views[-1].seed],
        "validation_seeds": [checks[0].seed, checks[-1].seed],
        "training_weathers": [name for name in WEATHERS if not held_out or name != HELD_OUT_WEATHER],
        "held_out_weather": HELD_OUT_WEATHER if held_out else None,
        "validation": metrics,
        "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
        "processor": platform.machine(),
    }


def _loader(store: SceneStore, settings: SceneTrainingSettings) -> _Batches:
    if settings.crop is None:
        return WeatherLoader(store, batch=settings.batch, seed=settings.seed)
    indices = np.flatnonzero(store.weathers != WEATHERS.index(HELD_OUT_WEATHER))
    height, width = settings.crop
    return ObjectLoader(store, indices, batch=settings.batch, height=height, width=width, seed=settings.seed)
