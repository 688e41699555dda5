"""The tasks that can be trained on scenes, by the classes of the recipe: their batches, their losses, and their metrics on other scenes."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from modelling.architectures.networks import decode_boxes
from modelling.evaluation.bag_images import split_boxes
from modelling.evaluation.metrics import LOW_SCORE, BoxMatcher, Confusion, matchers_by_size, metrics_by_size
from modelling.frameworks import tf
from modelling.recipes import Recipe
from rosbag_tools.drive.drive_views import (
    HELD_OUT_WEATHER,
    DriveView,
    fixed_camera_views,
    training_views,
    validation_views,
)
from rosbag_tools.drive.scene import OBJECTS, PRESENCE, WEATHERS
from shared.imaging.geometry import Resize, plan
from shared.inference.model import Model
from shared.tasks.detection import objects
from training.dataset import HEIGHT, WIDTH, BatchLoader, SceneStore
from training.scene_batches import DetectionTarget, ObjectLoader, PresenceLoader, WeatherLoader, answer, small
from training.trainer import Loss


def weather_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
    """Returns the accuracy and the confusion matrix, with the true weather by row and the prediction by column."""
    confusion = Confusion.empty(len(WEATHERS))
    for image, true in zip(store.pictures, store.weathers, strict=True):
        scores = model.infer(small(image, model.card.height, model.card.width)[np.newaxis])["scores"]
        confusion = confusion.with_masks(np.array([true], np.uint8), scores.argmax(axis=1).astype(np.uint8))
    return {
        "frames": len(store.pictures),
        "accuracy": round(confusion.pixel_accuracy, 4),
        "classes": WEATHERS,
        "confusion": confusion.counts.tolist(),
    }


def presence_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
    """Returns accuracy, precision and recall of the answer "vehicle", over all weathers and for each weather."""
    by_weather: dict[str, Confusion] = defaultdict(lambda: Confusion.empty(len(PRESENCE)))
    height, width = model.card.height, model.card.width
    for image, weather, rows in zip(store.pictures, store.weathers, store.boxes, strict=True):
        scores = model.infer(small(image, height, width)[np.newaxis])["scores"]
        truth = np.array([answer(rows, HEIGHT)], np.uint8)
        name = WEATHERS[weather]
        by_weather[name] = by_weather[name].with_masks(truth, scores.argmax(axis=1).astype(np.uint8))
    overall = Confusion(sum((each.counts for each in by_weather.values()), Confusion.empty(len(PRESENCE)).counts))
    return {
        "classes": PRESENCE,
        "all": _presence_figures(overall),
        "by_weather": {name: _presence_figures(confusion) for name, confusion in by_weather.items()},
    }


def _presence_figures(confusion: Confusion) -> dict[str, Any]:
    (_, false_alarms), (missed, found) = confusion.counts.tolist()
    return {
        "frames": int(confusion.counts.sum()),
        "accuracy": round(confusion.pixel_accuracy, 4),
        "precision": round(found / (found + false_alarms), 4) if found + false_alarms else None,
        "recall": round(found / (found + missed), 4) if found + missed else None,
        "confusion": confusion.counts.tolist(),
    }


def object_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
    """Returns average precision by class and size, over all weathers and for each weather."""
    manifest = model.manifest.with_score_threshold(LOW_SCORE)
    geometry = plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH)
    overall = matchers_by_size(len(OBJECTS))
    by_weather: dict[str, dict[float, BoxMatcher]] = defaultdict(lambda: matchers_by_size(len(OBJECTS)))
    for image, weather, rows in zip(store.pictures, store.weathers, store.boxes, strict=True):
        found = objects(model.infer_one(image), geometry, manifest)
        true = np.concatenate(split_boxes(rows[rows[:, 0] >= 0], HEIGHT, WIDTH))
        for matchers in (overall, by_weather[WEATHERS[weather]]):
            for matcher in matchers.values():
                matcher.add(found, true[:, 1:], true[:, 0].astype(np.intp))
    names, threshold = tuple(OBJECTS), model.manifest.detection.score_threshold
    return {
        "frames": len(store.pictures),
        "score_threshold": threshold,
        "all": metrics_by_size(overall, names, threshold),
        "by_weather": {name: metrics_by_size(matchers, names, threshold) for name, matchers in by_weather.items()},
    }


_BOX_WEIGHT = 5.0  # The value of Liu et al. 2020.
# Label smoothing, because classes are not always distinct: dense haze at dusk is a mixture, and a box may be just too small.
_SMOOTHING = 0.05


def classification_loss(logits: Any, class_ids: Any) -> Any:
    """Returns the cross-entropy of logits B×classes and class ids B, with label smoothing."""
    classes = logits.shape[-1]
    target = tf.one_hot(class_ids, classes) * (1 - _SMOOTHING) + _SMOOTHING / classes
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, logits))


def object_loss(maps: Any, target: DetectionTarget) -> Any:
    """Returns the focal loss of the heat map (Zhou et al. 2019, equation 1) plus the generalised IoU loss of the boxes."""
    logits, shapes = maps
    probability = tf.sigmoid(logits)
    centre = tf.cast(target.heat >= 1, tf.float32)
    positive = centre * (1 - probability) ** 2 * tf.math.log_sigmoid(logits)
    negative = (1 - centre) * (1 - target.heat) ** 4 * probability**2 * tf.math.log_sigmoid(-logits)
    centres = tf.maximum(tf.reduce_sum(centre), 1.0)
    heat_loss = -tf.reduce_sum((positive + negative) * target.counted[..., tf.newaxis]) / centres
    rows, columns = target.counted.shape[1:]
    iou = generalised_iou(decode_boxes(shapes, rows, columns), target.boxes)
    box_loss = tf.reduce_sum((1 - iou) * target.weights) / tf.maximum(tf.reduce_sum(target.weights), 1e-6)
    return heat_loss + _BOX_WEIGHT * box_loss


def generalised_iou(one: Any, other: Any) -> Any:
    """Returns the generalised intersection over union (Rezatofighi et al. 2019) of boxes …×4, from -1 to 1."""
    intersection = _area(tf.maximum(one[..., :2], other[..., :2]), tf.minimum(one[..., 2:], other[..., 2:]))
    union = _area(one[..., :2], one[..., 2:]) + _area(other[..., :2], other[..., 2:]) - intersection
    hull = _area(tf.minimum(one[..., :2], other[..., :2]), tf.maximum(one[..., 2:], other[..., 2:]))
    return tf.math.divide_no_nan(intersection, union) - tf.math.divide_no_nan(hull - union, hull)


def _area(low: Any, high: Any) -> Any:
    return tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)


@dataclass(frozen=True, slots=True)
class SceneTrainingSettings:
    """The settings of a training, which determine the weights up to the machine's rounding.

    If the machine cannot make all steps within `minutes`, the learning rate falls faster and the training ends by then.
    `crop` is the height and width of the detector's crops; the classifiers use (nearly) whole images at their own size.
    """

    steps: int
    batch: int
    peak_rate: float
    seed: int = 1
    minutes: float = math.inf
    frames: int = 2000
    validation_frames: int = 200
    crop: tuple[int, int] | None = None


Batches = BatchLoader[SceneStore, Any]  # Images B×H×W×3 and the truth for the loss.
Views = Callable[[int], list[DriveView]]


@dataclass(frozen=True, slots=True)
class SceneTask:
    """How a network is trained and validated on scenes.

    Attributes:
        settings: The default settings.
        loss: The loss of a batch.
        batches: Returns the batches of a store.
        metrics: Returns the metrics of a built model on a store.
        training_views: Returns a number of views to train on.
        validation_views: Returns a number of views of other drives.
        held_out_weather: A weather of the views that is not trained on.
        reference: An untrained recipe with the same answers, which is validated on the same scenes.
    """

    settings: SceneTrainingSettings
    loss: Loss
    batches: Callable[[SceneStore, Recipe, SceneTrainingSettings], Batches]
    metrics: Callable[[Model, SceneStore], dict[str, Any]]
    training_views: Views
    validation_views: Views
    held_out_weather: str | None = None
    reference: str | None = None


def _classifier_batches(
    loader: type[PresenceLoader] | type[WeatherLoader],
    store: SceneStore,
    recipe: Recipe,
    settings: SceneTrainingSettings,
) -> Batches:
    return loader(store, batch=settings.batch, height=recipe.height, width=recipe.width, seed=settings.seed)


def _object_batches(store: SceneStore, _: Recipe, settings: SceneTrainingSettings) -> Batches:
    indices = np.flatnonzero(store.weathers != WEATHERS.index(HELD_OUT_WEATHER))
    assert settings.crop is not None
    height, width = settings.crop
    return ObjectLoader(store, indices, batch=settings.batch, height=height, width=width, seed=settings.seed)


_TRAINING_VIEWS = partial(training_views, weathers=WEATHERS)
_VALIDATION_VIEWS = partial(validation_views, weathers=WEATHERS)

TASKS = {
    WEATHERS: SceneTask(
        settings=SceneTrainingSettings(steps=900, batch=16, peak_rate=1e-3),
        loss=classification_loss,
        batches=partial(_classifier_batches, WeatherLoader),
        metrics=weather_metrics,
        training_views=_TRAINING_VIEWS,
        validation_views=_VALIDATION_VIEWS,
    ),
    tuple(OBJECTS): SceneTask(
        settings=SceneTrainingSettings(steps=3500, batch=4, peak_rate=2e-3, crop=(256, 416)),
        loss=object_loss,
        batches=_object_batches,
        metrics=object_metrics,
        training_views=_TRAINING_VIEWS,
        validation_views=_VALIDATION_VIEWS,
        held_out_weather=HELD_OUT_WEATHER,
    ),
    PRESENCE: SceneTask(
        settings=SceneTrainingSettings(steps=2500, batch=32, peak_rate=1.5e-3, frames=3200, validation_frames=400),
        loss=classification_loss,
        batches=partial(_classifier_batches, PresenceLoader),
        metrics=presence_metrics,
        training_views=partial(fixed_camera_views, validation=False),
        validation_views=partial(fixed_camera_views, validation=True, views_per_drive=4),
        reference="car-reference",
    ),
}
