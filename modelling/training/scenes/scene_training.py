"""Training the weather's classifier and the objects' detector on scenes of the synthetic drive."""

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

from cloud.engines.engine import Placement
from cloud.models.repository import Repository
from modelling.building import build
from modelling.frameworks import keras
from modelling.recipes import RECIPES, Output, Recipe
from modelling.training.dataset import HELD_OUT_WEATHER, training_views, validation_views
from modelling.training.scenes.losses import object_loss, weather_loss
from modelling.training.scenes.object_batches import ObjectLoader
from modelling.training.scenes.scene_store import SceneStore
from modelling.training.scenes.validation import validated
from modelling.training.scenes.weather_batches import WeatherLoader
from modelling.training.trainer import Loss, Schedule, Trainer
from modelling.training.weights import Weights, assign, fold, grafted, unfold, weights_of, write_weights
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.labels import Labels

DONOR = "road-small"

_STEPS_BETWEEN_CHECKPOINTS = 200


@dataclass(frozen=True, slots=True)
class Course:
    """The figures of a training. With the seed they say which weights come out, up to the machine's rounding.

    `minutes`: where the machine is too slow for all the steps by then, the rate falls faster and the training ends.
    `crop`: height and width of the detector's crops; the classifier takes whole pictures, halved.
    """

    steps: int
    batch: int
    peak_rate: float
    seed: int = 1
    minutes: float = math.inf
    frames: int = 2000
    validation_frames: int = 200
    crop: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """How far a training has come; `progress` is 0 to 1."""

    step: int
    progress: float
    loss: float


class _Loader(AbstractContextManager[Any], Protocol):
    def __next__(self) -> Any: ...


COURSES = {
    Output.PROBABILITIES: Course(steps=900, batch=16, peak_rate=1e-3),
    Output.OBJECTS: Course(steps=3500, batch=4, peak_rate=2e-3, crop=(256, 416)),
}


def train(
    recipe: Recipe,
    folder: Path,
    course: Course,
    progress: Callable[[Report], None],
    *,
    donor: Weights,
    labels: Labels,
) -> Weights:
    """Render the scenes, train the recipe's network on them, and return its folded weights.

    `folder` gets the scenes (0.45 MB each), the built model under `models`, and `training.json` with what that model
    makes of the validation's scenes. `donor`: road-small's folded weights. `progress` is called after every step.
    """
    validation = SceneStore.render(validation_views(course.validation_frames, WEATHERS), folder / "validation")
    training = SceneStore.render(training_views(course.frames, weathers=WEATHERS), folder / "scenes")
    began = time.monotonic()
    report = Report(0, 0.0, math.nan)

    def tell(latest: Report) -> None:
        nonlocal report
        report = latest
        progress(latest)

    start = unfold(donor, RECIPES[DONOR].network(folded=False))
    weights = fold(learn(recipe, training, folder, course, tell, start=start))
    minutes = (time.monotonic() - began) / 60
    build(recipe, folder / "models", labels, weights)
    with Repository(folder / "models").load(recipe.name, Placement(device="cpu")) as model:
        figures = validated(model, recipe.output, validation)
    document = _document(recipe, replace(course, steps=report.step), minutes, figures)
    (folder / "training.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return weights


def learn(
    recipe: Recipe,
    store: SceneStore,
    folder: Path,
    course: Course,
    progress: Callable[[Report], None],
    *,
    start: Weights,
) -> Weights:
    """Train the recipe's network on a store; returns the running mean of the weights at the end, not folded.

    `start`: another network's weights, or a checkpoint's, not folded; layers of the same name and shape begin with what
    they know. There is no choice among checkpoints: the last weights, when the rate has fallen to nothing, are the result, and so the validation's figures
    flatter nobody. `folder` gets `checkpoint.npz` now and then. `progress` is called after every step.
    """
    keras.utils.set_random_seed(course.seed)
    network = recipe.network(folded=False)
    assign(network, grafted(weights_of(network), start), "the start")
    # By the running statistics throughout: the donor's are its normalisation's scales already, and few scenes a batch
    # differ too much from each other for statistics of their own.
    trainer = Trainer(network, Schedule(course.peak_rate), _LOSSES[recipe.output], normalise_by_batch=False)
    began = time.monotonic()
    step, done = 0, 0.0
    with _loader(store, course) as batches:
        while done < 1:
            loss = trainer.train_on(next(batches), done)
            step += 1
            done = max(step / course.steps, (time.monotonic() - began) / 60 / course.minutes)
            if step % _STEPS_BETWEEN_CHECKPOINTS == 0 or done >= 1:
                write_weights(folder / "checkpoint.npz", trainer.mean_weights())
            progress(Report(step, min(1.0, done), loss))
    return trainer.mean_weights()


_LOSSES: dict[Output, Loss] = {Output.PROBABILITIES: weather_loss, Output.OBJECTS: object_loss}


def _document(recipe: Recipe, course: Course, minutes: float, figures: dict[str, Any]) -> dict[str, Any]:
    """What a training was and came to, plain types."""
    views = training_views(course.frames, weathers=WEATHERS)
    checks = validation_views(course.validation_frames, WEATHERS)
    held_out = recipe.output is Output.OBJECTS
    return {
        "model": recipe.name,
        **{key: value for key, value in asdict(course).items() if value not in (math.inf, None)},
        "wall_time_minutes": round(minutes),
        "donor": DONOR,
        "training_seeds": [views[0].seed, views[-1].seed],
        "validation_seeds": [checks[0].seed, checks[-1].seed],
        "training_weathers": [name for name in WEATHERS if not held_out or name != HELD_OUT_WEATHER],
        "held_out_weather": HELD_OUT_WEATHER if held_out else None,
        "validation": figures,
        "versions": {package: version(package) for package in ("tensorflow", "keras", "numpy")},
        "processor": platform.machine(),
    }


def _loader(store: SceneStore, course: Course) -> _Loader:
    if course.crop is None:
        return WeatherLoader(store, batch=course.batch, seed=course.seed)
    known = np.flatnonzero(store.weathers != WEATHERS.index(HELD_OUT_WEATHER))
    height, width = course.crop
    return ObjectLoader(store, known, batch=course.batch, height=height, width=width, seed=course.seed)
