"""What a built classifier or detector makes of scenes that it was not trained on."""

from collections import defaultdict
from typing import Any

import numpy as np

from cloud.models.model import Model
from cloud.tasks.detection import objects
from modelling.evaluation.average_precision import BoxMatcher
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.detection_scores import counts_of_sizes, figures_of_sizes, lenient
from modelling.recipes import OBJECTS, Output
from modelling.training.scenes.object_batches import sifted
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from modelling.training.scenes.weather_batches import halved
from rosbag_tools.drive.scene import WEATHERS
from shared.imaging.geometry import Resize, plan

_Counts = dict[float, BoxMatcher]


def validated(model: Model, output: Output, store: SceneStore) -> dict[str, Any]:
    """The figures of a model on all scenes of a store, plain types for a JSON file."""
    return _weather(model, store) if output is Output.PROBABILITIES else _objects(model, store)


def _weather(model: Model, store: SceneStore) -> dict[str, Any]:
    """Accuracy, and of each true weather (row) how often it was taken for which (column)."""
    confusion = Confusion.empty(len(WEATHERS))
    for picture, true in zip(store.pictures, store.weathers, strict=True):
        scores = model.infer(halved(picture)[np.newaxis])["scores"]
        confusion = confusion.with_masks(np.array([true], np.uint8), scores.argmax(axis=1).astype(np.uint8))
    return {
        "frames": len(store.pictures),
        "accuracy": round(confusion.pixel_accuracy, 4),
        "classes": WEATHERS,
        "confusion": confusion.counts.tolist(),
    }


def _objects(model: Model, store: SceneStore) -> dict[str, Any]:
    """Average precision by class and size: of all weathers, and of each, which tells how far the figures scatter."""
    manifest = lenient(model.manifest)
    geometry = plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH)
    every = counts_of_sizes(len(OBJECTS))
    by_weather: dict[str, _Counts] = defaultdict(lambda: counts_of_sizes(len(OBJECTS)))
    for picture, weather, rows in zip(store.pictures, store.weathers, store.boxes, strict=True):
        outputs = model.infer(picture[np.newaxis])
        found = objects({head: values[0] for head, values in outputs.items()}, geometry, manifest)
        taught, small = sifted(rows[rows[:, 0] >= 0], HEIGHT, WIDTH)
        true = np.concatenate([taught, small])
        for counts in (every, by_weather[WEATHERS[weather]]):
            for count in counts.values():
                count.add(found, true[:, 1:], true[:, 0].astype(np.intp))
    threshold = model.manifest.detection.score_threshold
    return {
        "frames": len(store.pictures),
        "score_threshold": threshold,
        "all": figures_of_sizes(every, tuple(OBJECTS), threshold),
        "by_weather": {
            name: figures_of_sizes(counts, tuple(OBJECTS), threshold) for name, counts in by_weather.items()
        },
    }
