"""The formats that a model can be written in, and from which others."""

from typing import NamedTuple

from cloud.engines.engine import Precision
from cloud.models.manifest import Manifest
from modelling.conversion.errors import ConversionError

_TENSORFLOW = ("frozen_graph", "saved_model", "keras")
_BOTH = (Precision.FP32, Precision.FP16)


class Target(NamedTuple):
    """A format that can be written."""

    file: str  # Within the model's folder.
    sources: tuple[str, ...]  # The formats that it can be made from.
    precisions: tuple[Precision, ...] = (Precision.FP32,)


TARGETS = {
    "onnx": Target("model.onnx", (*_TENSORFLOW, "onnx"), _BOTH),
    "tflite": Target("model.tflite", _TENSORFLOW, _BOTH),
    "openvino": Target("ir", ("frozen_graph", "saved_model", "onnx", "tflite"), _BOTH),
    "saved_model": Target("saved_model", _TENSORFLOW),
    "frozen_graph": Target("model.pb", _TENSORFLOW),
}


def check(manifest: Manifest, name: str, target: str, precision: Precision) -> None:
    """Check that there is a way from a model to a format.

    Raises:
        ConversionError: there is none; says what there is.
    """
    form = manifest.format
    if form not in TARGETS[target].sources:
        ways = [each for each, other in TARGETS.items() if form in other.sources]
        told = f"{form} can be made into {', '.join(ways)}" if ways else f"nothing is made from {form}"
        raise ConversionError(target, f"{name} is {form}, and {told}")
    if precision not in TARGETS[target].precisions:
        able = ", ".join(each for each, other in TARGETS.items() if precision in other.precisions)
        raise ConversionError(target, f"{precision} numbers are written as {able}")
    if manifest.precision is not Precision.FP32:
        raise ConversionError(target, f"{name} holds {manifest.precision} numbers: convert the model that it is of")
    if form == target and precision is Precision.FP32:
        raise ConversionError(target, f"{name} is that already")
