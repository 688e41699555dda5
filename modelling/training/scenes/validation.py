"""Validates a built classifier or detector on scenes that it was not trained on.

Each function returns the metrics of a model on all scenes of a store, as plain types for a JSON file.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from modelling.evaluation.average_precision import BoxMatcher, matchers_by_size, metrics_by_size, with_low_threshold
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.true_boxes import split_boxes
from modelling.recipes import OBJECTS, PRESENCE
from modelling.training.scenes.presence_batches import answer, halved, small
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.geometry import Resize, plan
from shared.inference.model import Model
from shared.tasks.detection import objects


def weather_metrics(model: Model, store: SceneStore) -> dict[str, Any]:
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
