"""Models made from others: the formats to convert to, and the manifest and file size of a derived model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shared.errors import SkylaneError
from shared.files import write_file
from shared.imaging.labels import Labels
from shared.models.manifest import MANIFEST_NAME, Manifest, OutputKind, Precision
from shared.task import CONFIDENCE_HEAD, task_named

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


IMAGES = "images"  # The name of the input in end-to-end files.

_FINAL_KINDS = {
    "mask": OutputKind.CLASS_IDS,
    CONFIDENCE_HEAD: OutputKind.SCORES,
    "scores": OutputKind.PROBABILITIES,
    "boxes": OutputKind.BOXES,
    "classes": OutputKind.CLASSES,
    "count": OutputKind.COUNT,
}
_NOT_INHERITED = {"labels_file", "engine", "agreement", "signature", "confidence"}


def end_to_end_sections(
    source: Manifest, image_tensor: str, tensors: Mapping[str, str], *, batch_size: int | None
) -> dict[str, Any]:
    """Returns the manifest keys of a file from camera pixels to the outputs of `Engine.infer`.

    Args:
        source: The manifest of the source model.
        image_tensor: The name of the input.
        tensors: The names of the outputs by head.
        batch_size: The fixed batch size of the file; None if it accepts any.
    """
    section = source.input.model_dump(include={"height", "width", "layout", "resize"}, mode="json")
    heads = {
        head: {"tensor": tensor, "kind": _FINAL_KINDS[head] if task_named(source.task).heads else OutputKind.TENSOR}
        for head, tensor in tensors.items()
    }
    keys: dict[str, Any] = {"input": {**section, "tensor": image_tensor, "dtype": "uint8"}, "box_format": {}}
    if source.detection.no_object:
        keys["detection"] = source.detection.model_copy(update={"no_object": None})
    confidence = heads.pop(CONFIDENCE_HEAD, None) if source.confidence else None
    has_one = len(task_named(source.task).heads) == 1
    keys |= {"output": next(iter(heads.values())), "confidence": confidence} if has_one else {"outputs": heads}
    return keys if batch_size is None else keys | {"batching": {"max_size": batch_size}}


def derived_manifest(source: Manifest, labels: Labels | None, changes: Mapping[str, Any]) -> Manifest:
    """Returns `source` without engine, signature, agreement and confidence, with `changes` and with `labels` written out."""
    document = source.model_dump(mode="json", exclude_none=True, exclude=_NOT_INHERITED) | dict(changes)
    if labels is not None:
        named = zip(labels.names, labels.colours, strict=True)
        document["labels"] = [{"name": name, "colour": colour} for name, colour in named]
    return Manifest.model_validate(document)


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes `model.yaml` into a model's folder."""
    write_file(folder / MANIFEST_NAME, manifest.to_yaml())


def megabytes(path: Path) -> float:
    """Returns the size of a file, or of all files in a folder, in units of 10⁶ bytes."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files) / 1e6
