"""Trains a classifier or the object detector on scenes of the synthetic drive; `scene_tasks` lists the tasks."""

import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cloud.models.loader import ModelLoader
from modelling.architectures.weights import Weights, assign, weights_of
from modelling.building import build
from modelling.frameworks import keras
from modelling.recipes import RECIPES, Recipe
from rosbag_tools.drive.scene import WEATHERS
from shared.files import write_file
from shared.imaging.labels import Labels
from shared.models.manifest import Placement
from shared.models.repository import Repository
from training.dataset import SceneStore
from training.scene_tasks import TASKS, SceneTask, SceneTrainingSettings
from training.trainer import LearningRateSchedule, Trainer, TrainingProgress
from training.weights import fold, with_donor_weights, write_weights

DONOR = "road-small"  # The model whose weights initialise the networks.

_STEPS_BETWEEN_CHECKPOINTS = 200


def train(
    recipe: Recipe,
    folder: Path,
    settings: SceneTrainingSettings,
    on_progress: Callable[[TrainingProgress], None],
    *,
    donor: Weights,
    source: Path,
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
        source: The repository with the built-in weights of the task's reference.
        labels: The names and colours of the drive's classes.
    """
    task = TASKS[recipe.class_names]
    validation = SceneStore.render(task.validation_views(settings.validation_frames), folder / "validation")
    training = SceneStore.render(task.training_views(settings.frames), folder / "scenes")
    began = time.monotonic()
    steps = 0

    def report(progress: TrainingProgress) -> None:
        nonlocal steps
        steps = progress.step
        on_progress(progress)

    weights = fold(train_network(recipe, training, folder, settings, report, start=donor))
    minutes = (time.monotonic() - began) / 60
    build(recipe, folder / "models", labels, weights)
    metrics = {"validation": _metrics(task, folder / "models", recipe.name, validation)}
    if task.reference is not None:
        build(RECIPES[task.reference], folder / "models", labels, source=source)
        metrics[f"validation of {task.reference}"] = _metrics(task, folder / "models", task.reference, validation)
    document = _document(recipe, replace(settings, steps=steps), minutes, metrics)
    write_file(folder / "training.json", json.dumps(document, indent=2) + "\n")
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
    task = TASKS[recipe.class_names]
    # The donor's running statistics already fit, and a batch of a few scenes varies too much for its own.
    schedule = LearningRateSchedule(settings.peak_rate)
    trainer = Trainer(network, schedule, task.loss, normalise_by_batch=False)
    began = time.monotonic()
    step, done = 0, 0.0
    with task.batches(store, recipe, settings) as batches:
        while done < 1:
            loss = trainer.train_on(next(batches), done)
            step += 1
            done = max(step / settings.steps, (time.monotonic() - began) / 60 / settings.minutes)
            if step % _STEPS_BETWEEN_CHECKPOINTS == 0 or done >= 1:
                write_weights(folder / "checkpoint.npz", trainer.mean_weights())
            on_progress(TrainingProgress(step, min(1.0, done), loss))
    return trainer.mean_weights()


def _metrics(task: SceneTask, models: Path, name: str, validation: SceneStore) -> dict[str, Any]:
    with ModelLoader(Repository(models), Placement(device="cpu")).open(name) as model:
        return task.metrics(model, validation)


def _document(
    recipe: Recipe, settings: SceneTrainingSettings, minutes: float, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Returns the settings and results of a training, as plain types."""
    task = TASKS[recipe.class_names]
    views, checks = task.training_views(settings.frames), task.validation_views(settings.validation_frames)
    return {
        "model": recipe.name,
        **{key: value for key, value in asdict(settings).items() if value not in (math.inf, None)},
        "wall_time_minutes": round(minutes),
        "donor": DONOR,
        "training_seeds": [views[0].seed, views[-1].seed],
        "validation_seeds": [checks[0].seed, checks[-1].seed],
        "training_weathers": [name for name in WEATHERS if name != task.held_out_weather],
        "held_out_weather": task.held_out_weather,
        **metrics,
        "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
        "processor": platform.machine(),
    }
