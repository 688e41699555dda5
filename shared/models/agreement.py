"""Agreement of the outputs of two engines: the share of equal labels."""

import numpy as np

from shared.errors import SkylaneError
from shared.inference.engine import Outputs
from shared.models.manifest import Manifest
from shared.tasks.task import task_named
from shared.tasks.tensors import differences


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
    return task_named(manifest.task).agreement(reference, given, manifest)


def largest_difference(reference: Outputs, given: Outputs) -> float:
    """Returns the largest difference of two corresponding numbers over all outputs.

    Raises:
        AgreementError: names or shapes of the outputs differ.
    """
    _check_comparable(reference, given)
    return max(float(np.max(differences(reference[name], given[name]), initial=0.0)) for name in reference)


def _check_comparable(reference: Outputs, given: Outputs) -> None:
    wanted, found = ({name: values.shape for name, values in sorted(outputs.items())} for outputs in (reference, given))
    if wanted != found:
        actual, expected = (
            ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())[:200]
            for shapes in (found, wanted)
        )
        raise AgreementError(f"its outputs are {actual}, those of the reference {expected}: the models are different")
