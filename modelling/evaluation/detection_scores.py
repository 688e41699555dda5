"""A detector's metrics by class and object size."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from modelling.evaluation.average_precision import BoxMatcher
from shared.models.manifest import Manifest

SIZES = (6.0, 12.0, 24.0)  # Smallest counted objects: root of the area in pixels of the model's input.
HEADLINE_SIZE = 12.0  # The size of the summary value.

_MIN_SCORE = 0.05  # Lower scores hardly change the precision-recall curve, but cost the most time.


def matchers_by_size(classes: int) -> dict[float, BoxMatcher]:
    """Returns an empty matcher for each size."""
    return {size: BoxMatcher(classes, size) for size in SIZES}


def with_low_threshold(manifest: Manifest) -> Manifest:
    """Returns the manifest with a score threshold that is low enough for a whole precision-recall curve."""
    section = manifest.detection.model_copy(update={"score_threshold": _MIN_SCORE})
    return manifest.model_copy(update={"detection": section})


def metrics_by_size(matchers: dict[float, BoxMatcher], names: Sequence[str], threshold: float) -> dict[str, Any]:
    """Returns rounded metrics by class name and size, None for undefined ones; see `BoxMatcher.metrics`."""
    return {
        name: {f"from_{size:g}_px": _rounded(matcher, class_id, threshold) for size, matcher in matchers.items()}
        for class_id, name in enumerate(names)
    }


def _rounded(matcher: BoxMatcher, class_id: int, threshold: float) -> dict[str, Any]:
    metrics = matcher.metrics(class_id, threshold)
    values = {name: getattr(metrics, name) for name in ("average_precision", "recall", "precision")}
    return {"truths": metrics.truths} | {
        name: None if np.isnan(value) else round(value, 4) for name, value in values.items()
    }
