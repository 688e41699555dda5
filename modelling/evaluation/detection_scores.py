"""A detector's figures by class and by the size of what is to be found."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cloud.models.manifest import Manifest
from modelling.evaluation.average_precision import BoxMatcher

SIZES = (6.0, 12.0, 24.0)  # Pixels of the model's input, the root of the area, from which a thing counts.
HEADLINE_SIZE = 12.0  # The one of them that is told where there is room for one figure.

_LEAST_SCORE = 0.05  # Below it a curve of precision over recall is all but flat, and costs the most.


def counts_of_sizes(classes: int) -> dict[float, BoxMatcher]:
    """Empty counts by size."""
    return {size: BoxMatcher(classes, size) for size in SIZES}


def lenient(manifest: Manifest) -> Manifest:
    """The manifest with a score threshold so low that a whole curve of precision over recall comes out."""
    section = manifest.detection.model_copy(update={"score_threshold": _LEAST_SCORE})
    return manifest.model_copy(update={"detection": section})


def figures_of_sizes(counts: dict[float, BoxMatcher], names: Sequence[str], threshold: float) -> dict[str, Any]:
    """By class and size, rounded; null where there is nothing to divide by. `threshold`: as `BoxMatcher.figures`."""
    return {
        name: {f"from_{size:g}_px": _rounded(count, class_id, threshold) for size, count in counts.items()}
        for class_id, name in enumerate(names)
    }


def _rounded(count: BoxMatcher, class_id: int, threshold: float) -> dict[str, Any]:
    found = count.figures(class_id, threshold)
    figures = {
        "average_precision": found.average_precision,
        "recall": found.recall,
        "precision": found.precision,
    }
    return {"truths": found.truths} | {
        name: None if np.isnan(value) else round(value, 4) for name, value in figures.items()
    }
