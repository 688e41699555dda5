"""Raw tensors: all outputs of the model, or the requested ones."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import MAX_LABELS
from shared.messages import tensors
from shared.messages.frame import FrameMessage
from shared.messages.results import Tensors
from shared.task import Confidence, ConfidenceError, Head
from shared.tasks.drawing import draw_lines

_TOLERANCE = 1e-3  # Difference of two equal numbers, relative to the largest one of the tensor.


class TensorsTask:
    """A result is a `Tensors`, encoded as arrays under the names of the outputs."""

    result_name = "tensors"
    codecs = tensors.TENSOR_CODECS
    has_shape = False
    sinks = ("jsonl", "npz")
    labels = (0, MAX_LABELS)
    heads: ClassVar[dict[str, Head]] = {}
    optional_heads: ClassVar[dict[str, Head]] = {}
    settings = ()
    comparison = "labels: numbers within a thousandth of the largest; off by: largest difference of a number"

    def result(self, outputs: Mapping[str, Any], message: FrameMessage, manifest: Any) -> Tensors:
        """Returns the outputs in the order of the message; if it names none, all in the order of the manifest."""
        return Tensors({name: outputs[name] for name in message.options.outputs or manifest.heads})

    def encode(self, result: Tensors, codec: str) -> Buffer:
        """See Task."""
        return tensors.encode(result.values, codec)

    def decode(
        self, data: Buffer, codec: str, _shape: Any, _geometry: Any = None, _labels: int = MAX_LABELS
    ) -> Tensors:
        """See Task."""
        return Tensors(tensors.decode(data, codec))

    def draw(self, rgb: ImageArray, result: Tensors, _labels: Any, _geometry: Any, _opacity: float) -> ImageArray:
        """Draws a list of the shapes."""
        return draw_lines(rgb, [_shape_of(name, array) for name, array in result.values.items()])

    def json_fields(self, result: Tensors, _geometry: Any, _labels: Any) -> dict[str, Any]:
        """Returns `tensors`, dtype and shape by name."""
        shapes = {
            name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in result.values.items()
        }
        return {"tensors": shapes}

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], _manifest: Any) -> float:
        """Compares each number, within a tolerance; the worst tensor counts."""
        return min(_number_agreement(reference[name], given[name]) for name in reference)

    def confidence(self, _outputs: Mapping[str, Any], _manifest: Any, _temperature: float) -> Confidence:
        """Raises an error, because the meaning of the tensors is unknown."""
        raise ConfidenceError("raw tensors have no confidence: a cascade needs a model of another task")


def differences(reference: npt.NDArray[Any], given: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns the absolute difference of each pair of numbers; 0 for two equal infinities."""
    wanted, found = reference.astype(np.float64), given.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(wanted == found, 0.0, np.abs(wanted - found))


def _number_agreement(reference: npt.NDArray[Any], given: npt.NDArray[Any]) -> float:
    if not reference.size:
        return 1.0
    sizes = np.abs(reference.astype(np.float64))
    largest = np.max(sizes, where=np.isfinite(sizes), initial=0.0)
    return float(np.mean(differences(reference, given) <= _TOLERANCE * largest))


def _shape_of(name: str, array: npt.NDArray[Any]) -> str:
    return f"{name}: {array.dtype.name} {' x '.join(map(str, array.shape)) or 'number'}"
