"""How far two engines' answers agree: the share of labels that are the same."""

import numpy as np

from cloud.engines.engine import Outputs
from cloud.manifest import Manifest
from cloud.tasks.detection import objects
from shared.boxes import overlap
from shared.geometry import Resize, plan
from shared.model_card import Task

_MATCH = 0.75  # Two boxes of a class that overlap so much are one object's.
_CLOSE = 1e-3  # Two numbers of a tensor are equal where they differ by at most so much of its largest.


def agreement(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    """The share of labels in `given` that are the reference's, 0 to 1; both are N pictures' outputs, as an engine's.

    Of a segmentation: pixels of the same class. Of a classification: pictures of the same most probable class. Of a
    detection: objects told by both, over all objects (two matched are two). Of tensors: numbers that are close.
    """
    match manifest.task:
        case Task.SEGMENTATION:
            return float(np.mean(reference["mask"] == given["mask"]))
        case Task.CLASSIFICATION:
            return float(np.mean(reference["scores"].argmax(axis=1) == given["scores"].argmax(axis=1)))
        case Task.DETECTION:
            return _of_objects(manifest, reference, given)
    return min(_of_numbers(reference[head], given[head]) for head in reference)


def largest_difference(reference: Outputs, given: Outputs) -> float:
    """The largest difference of two numbers at the same place, of all heads; of labels it says little."""
    return max(
        float(np.max(np.abs(reference[head].astype(np.float64) - given[head].astype(np.float64)), initial=0.0))
        for head in reference
    )


def _of_objects(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    height, width = manifest.input.height, manifest.input.width
    geometry = plan(Resize.STRETCH, height, width, height, width)
    matched = total = 0
    for number in range(len(reference["scores"])):
        ours, theirs = (
            objects({head: values[number] for head, values in outputs.items()}, geometry, manifest)
            for outputs in (reference, given)
        )
        total += len(ours.boxes) + len(theirs.boxes)
        if len(ours.boxes) and len(theirs.boxes):
            overlaps = overlap(ours.boxes.astype(np.float64), theirs.boxes.astype(np.float64))
            overlaps[ours.class_ids[:, np.newaxis] != theirs.class_ids[np.newaxis]] = 0.0
            while overlaps.size and overlaps.max() >= _MATCH:  # Each object is matched once, the best pair first.
                one, other = np.unravel_index(overlaps.argmax(), overlaps.shape)
                overlaps[one, :] = overlaps[:, other] = 0.0
                matched += 2
    return matched / total if total else 1.0


def _of_numbers(
    reference: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
    given: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
) -> float:
    if reference.shape != given.shape:
        return 0.0
    wanted, found = reference.astype(np.float64), given.astype(np.float64)
    return (
        float(np.mean(np.abs(wanted - found) <= _CLOSE * np.max(np.abs(wanted), initial=0.0))) if wanted.size else 1.0
    )
