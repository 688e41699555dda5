"""Scores segmentation models on drives in every weather, at the camera's resolution."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modelling.evaluation.confusion import Confusion
from modelling.training.dataset import TrainingView, generator, photographed_view
from rosbag_tools.drive.scene import CLASSES, WEATHERS
from shared.imaging.geometry import apply, plan, to_source
from shared.inference.model import Model

_UNSEEN = CLASSES.index("none")  # The class of pixels outside a model's crop.


def scores_by_weather(
    models: Sequence[Model], views: Sequence[TrainingView], on_view: Callable[[int], None] = lambda _done: None
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
