"""Validates a built classifier or detector on scenes that it was not trained on."""

from collections import defaultdict
from typing import Any

import numpy as np

from modelling.evaluation.average_precision import BoxMatcher
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.detection_scores import matchers_by_size, metrics_by_size, with_low_threshold
from modelling.recipes import OBJECTS, Output
from modelling.training.scenes.object_batches import split_boxes
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from modelling.training.scenes.weather_batches import halved
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.geometry import Resize, plan
from shared.models.model import Model
from shared.tasks.detection import objects


def validate_model(model: Model, output: Output, store: SceneStore) -> dict[str, Any]:
    """Returns a model's metrics on all scenes of a store, as plain types for a JSON file."""
    return _weather_metrics(model, store) if output is Output.PROBABILITIES else _object_metrics(model, store)


def _weather_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
    """Returns the accuracy and the confusion matrix, with the true weather by row and the prediction by column."""
    confusion = Confusion.empty(len(WEATHERS))
    for image, true in zip(store.pictures, store.weathers, strict=True):
        scores = model.infer(halved(image)[np.newaxis])["scores"]
        confusion = confusion.with_masks(np.array([true], np.uint8), scores.argmax(axis=1).astype(np.uint8))
    return {
        "frames": len(store.pictures),
        "accuracy": round(confusion.pixel_accuracy, 4),
        "classes": WEATHERS,
        "confusion": confusion.counts.tolist(),
    }


def _object_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
    """Returns average precision by class and size, over all weathers and for each weather."""
    manifest = with_low_threshold(model.manifest)
    geometry = plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH)
    overall = matchers_by_size(len(OBJECTS))
    by_weather: dict[str, dict[float, BoxMatcher]] = defaultdict(lambda: matchers_by_size(len(OBJECTS)))
    for image, weather, rows in zip(store.pictures, store.weathers, store.boxes, strict=True):
        outputs = model.infer(image[np.newaxis])
        found = objects({head: values[0] for head, values in outputs.items()}, geometry, manifest)
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
