"""The formats that a model can be converted to, and the formats that each can be made from."""

from typing import NamedTuple

from shared.errors import SkylaneError
from shared.models.manifest import Manifest, Precision

_TENSORFLOW = ("frozen_graph", "saved_model", "keras")
_BOTH = (Precision.FP32, Precision.FP16)


class ConversionError(SkylaneError):
    """A model cannot be converted to a format."""

    def __init__(self, target: str, cause: object) -> None:
        self.target = target
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        super().__init__(f"cannot be written as {target}: {lines[0][:300] if lines else type(cause).__name__}")


class ConversionTarget(NamedTuple):
    """A format to convert to."""

    file: str  # The file's or folder's name in the model's folder.
    sources: tuple[str, ...]  # The formats that it can be made from.
    precisions: tuple[Precision, ...] = (Precision.FP32,)


TARGETS = {
    "onnx": ConversionTarget("model.onnx", (*_TENSORFLOW, "onnx"), _BOTH),
    "tflite": ConversionTarget("model.tflite", _TENSORFLOW, _BOTH),
    "openvino": ConversionTarget("ir", ("frozen_graph", "saved_model", "onnx", "tflite"), _BOTH),
    "saved_model": ConversionTarget("saved_model", _TENSORFLOW),
    "frozen_graph": ConversionTarget("model.pb", _TENSORFLOW),
}


def check_target(manifest: Manifest, name: str, target: str, precision: Precision) -> None:
    """Checks that a model can be converted to a format and precision.

    Raises:
        ConversionError: it cannot; the message lists the possible conversions.
    """
    form = manifest.format
    if form not in TARGETS[target].sources:
        possible = [each for each, other in TARGETS.items() if form in other.sources]
        hint = f"{form} can be made into {', '.join(possible)}" if possible else f"{form} cannot be converted"
        raise ConversionError(target, f"{name} is {form}, and {hint}")
    if precision not in TARGETS[target].precisions:
        able = ", ".join(each for each, other in TARGETS.items() if precision in other.precisions)
        raise ConversionError(target, f"{precision} numbers are written as {able}")
    if manifest.precision is not Precision.FP32:
        raise ConversionError(
            target, f"{name} holds {manifest.precision} numbers: convert the model that it was made from"
        )
    if form == target and precision is Precision.FP32:
        raise ConversionError(target, f"{name} already has this format")
