"""How far two engines' answers agree: the share of labels that are the same."""

from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import Outputs
from cloud.models.manifest import Manifest
from cloud.tasks.detection import objects
from shared.errors import SkylaneError
from shared.imaging.boxes import pairwise_iou
from shared.imaging.geometry import Resize, plan
from shared.messages.model_card import Task

_Array = npt.NDArray[Any]

_MATCH = 0.75  # Two boxes of a class that overlap so much are one object's.
_CLOSE = 1e-3  # Two numbers of a tensor are equal where they differ by at most so much of its largest.


class AgreementError(SkylaneError):
    """Answers that cannot be held against each other."""


def agreement(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    """The share of labels in `given` that are the reference's, 0 to 1; both are N pictures' outputs, as an engine's.

    Of a segmentation: pixels of the same class. Of a classification: pictures of the same most probable class. Of a
    detection: objects told by both, over all objects (two matched are two). Of tensors: numbers that are close.

    Raises:
        AgreementError: they have other heads, or those are of other shapes.
    """
    _check_alike(reference, given)
    match manifest.task:
        case Task.SEGMENTATION:
            return float(np.mean(reference["mask"] == given["mask"]))
        case Task.CLASSIFICATION:
            return float(np.mean(reference["scores"].argmax(axis=1) == given["scores"].argmax(axis=1)))
        case Task.DETECTION:
            return _of_objects(manifest, reference, given)
    return min(_of_numbers(reference[head], given[head]) for head in reference)


def largest_difference(reference: Outputs, given: Outputs) -> float:
    """The largest difference of two numbers at the same place, of all heads; of labels it says little.

    Raises:
        AgreementError: as `agreement`.
    """
    _check_alike(reference, given)
    return max(float(np.max(_differences(reference[head], given[head]), initial=0.0)) for head in reference)


def _check_alike(reference: Outputs, given: Outputs) -> None:
    wanted, found = ({head: values.shape for head, values in sorted(outputs.items())} for outputs in (reference, given))
    if wanted != found:
        told, other = (
            ", ".join(f"{head} {'×'.join(map(str, shape))}" for head, shape in shapes.items())[:200]
            for shapes in (found, wanted)
        )
        raise AgreementError(f"it gives {told}, the reference {other}: they are not one model's")


def _differences(reference: _Array, given: _Array) -> npt.NDArray[np.float64]:
    """How far the numbers at each place lie apart; 0 for two equal infinities."""
    wanted, found = reference.astype(np.float64), given.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(wanted == found, 0.0, np.abs(wanted - found))


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
            overlaps = pairwise_iou(ours.boxes.astype(np.float64), theirs.boxes.astype(np.float64))
            overlaps[ours.class_ids[:, np.newaxis] != theirs.class_ids[np.newaxis]] = 0.0
            while overlaps.size and overlaps.max() >= _MATCH:  # Each object is matched once, the best pair first.
                one, other = np.unravel_index(overlaps.argmax(), overlaps.shape)
                overlaps[one, :] = overlaps[:, other] = 0.0
                matched += 2
    return matched / total if total else 1.0


def _of_numbers(reference: _Array, given: _Array) -> float:
    if not reference.size:
        return 1.0
    sizes = np.abs(reference.astype(np.float64))
    largest = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
    return float(np.mean(_differences(reference, given) <= _CLOSE * largest))
