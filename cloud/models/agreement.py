"""Agreement of the outputs of two engines: the share of equal labels."""

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

_MIN_OVERLAP = 0.75  # Overlap of two boxes of the same class that show the same object.
_TOLERANCE = 1e-3  # Difference of two equal numbers, relative to the largest one of the tensor.


class AgreementError(SkylaneError):
    """Outputs that cannot be compared."""


def agreement(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    """Returns the share of labels in `given` that equal the reference, 0 to 1; both are outputs for N images.

    A segmentation is compared by the class of each pixel, a classification by the most probable class of each image. In
    a detection, the share is the number of matched objects in both over the number of all objects. Tensors are compared
    by each number, within a tolerance; the worst tensor counts.

    Raises:
        AgreementError: names or shapes of the outputs differ.
    """
    _check_comparable(reference, given)
    match manifest.task:
        case Task.SEGMENTATION:
            return float(np.mean(reference["mask"] == given["mask"]))
        case Task.CLASSIFICATION:
            return float(np.mean(reference["scores"].argmax(axis=1) == given["scores"].argmax(axis=1)))
        case Task.DETECTION:
            return _object_agreement(manifest, reference, given)
    return min(_number_agreement(reference[name], given[name]) for name in reference)


def largest_difference(reference: Outputs, given: Outputs) -> float:
    """Returns the largest difference of two corresponding numbers over all outputs.

    Raises:
        AgreementError: names or shapes of the outputs differ.
    """
    _check_comparable(reference, given)
    return max(float(np.max(_differences(reference[name], given[name]), initial=0.0)) for name in reference)


def _check_comparable(reference: Outputs, given: Outputs) -> None:
    wanted, found = ({name: values.shape for name, values in sorted(outputs.items())} for outputs in (reference, given))
    if wanted != found:
        actual, expected = (
            ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())[:200]
            for shapes in (found, wanted)
        )
        raise AgreementError(f"its outputs are {actual}, those of the reference {expected}: the models are different")


def _differences(reference: _Array, given: _Array) -> npt.NDArray[np.float64]:
    """The absolute difference of each pair of numbers; 0 for two equal infinities."""
    wanted, found = reference.astype(np.float64), given.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(wanted == found, 0.0, np.abs(wanted - found))


def _object_agreement(manifest: Manifest, reference: Outputs, given: Outputs) -> float:
    height, width = manifest.input.height, manifest.input.width
    geometry = plan(Resize.STRETCH, height, width, height, width)
    matched = total = 0
    for number in range(len(reference["scores"])):
        ours, theirs = (
            objects({name: values[number] for name, values in outputs.items()}, geometry, manifest)
            for outputs in (reference, given)
        )
        total += len(ours.boxes) + len(theirs.boxes)
        if len(ours.boxes) and len(theirs.boxes):
            overlaps = pairwise_iou(ours.boxes.astype(np.float64), theirs.boxes.astype(np.float64))
            overlaps[ours.class_ids[:, np.newaxis] != theirs.class_ids[np.newaxis]] = 0.0
            while overlaps.size and overlaps.max() >= _MIN_OVERLAP:  # The best pair is matched first, each object once.
                one, other = np.unravel_index(overlaps.argmax(), overlaps.shape)
                overlaps[one, :] = overlaps[:, other] = 0.0
                matched += 2
    return matched / total if total else 1.0


def _number_agreement(reference: _Array, given: _Array) -> float:
    if not reference.size:
        return 1.0
    sizes = np.abs(reference.astype(np.float64))
    largest = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
    return float(np.mean(_differences(reference, given) <= _TOLERANCE * largest))
