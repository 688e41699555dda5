"""`skylane model convert`: writes a model in another format and compares its labels with the original's."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.models.opening import open_model
from modelling.conversion.derived_model import (
    IMAGES,
    TARGETS,
    ConversionError,
    check_target,
    derived_manifest,
    end_to_end_sections,
    megabytes,
    write_manifest,
)
from shared.errors import MissingExtraError, error_reason
from shared.files import tree_sha256
from shared.inference.engine import Images
from shared.inference.model import agreement
from shared.models.manifest import Manifest, Placement, Precision
from shared.models.repository import Repository, StoredModel


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A new model's folder, and the comparison with its reference."""

    folder: Path
    manifest: Manifest
    reference: str  # The model that its labels were compared with.
    frames: int
    megabytes_before: float
    megabytes_after: float

    @property
    def agreement(self) -> float:
        """The share of labels equal to the reference's, 0 to 1."""
        return self.manifest.agreement or 0.0

    @property
    def holds_floor(self) -> bool:
        """True if the agreement suffices for `engine: auto`."""
        return self.agreement >= self.manifest.agreement_floor


def convert(
    repository: Repository,
    name: str,
    target: str,
    frames: Images,
    *,
    new_name: str,
    precision: Precision = Precision.FP32,
    replace: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> ConvertedModel:
    """Converts model `name` of the repository to the format `target` and adds the result as model `new_name`.

    The new model appears in the repository only when it is complete.

    Args:
        repository: The model repository.
        name: The model to convert.
        target: A key of TARGETS.
        frames: uint8 N×H×W×3 in the model's channel order; both models' labels are compared on them.
        new_name: The name of the new model.
        precision: The number type of the new model.
        replace: Replace an existing model `new_name`.
        on_step: Called with a description of each step.

    Raises:
        ConversionError: the formats or an operation cannot be converted, or the folder exists.
        MissingExtraError: a library is not installed.
        SkylaneError: the model cannot be read or run.
    """
    stored = repository.find(name)
    manifest, path = stored.manifest, stored.file()
    check_target(manifest, name, target, precision)
    final = repository.root / new_name
    if final.exists() and (not replace or new_name == name):
        raise ConversionError(target, f"{final} exists already: choose another --name, or give --force to replace it")
    labels = stored.labels() if manifest.labels or manifest.labels_file else None
    variant = target if precision is Precision.FP32 else f"{target}, {precision}"
    try:
        repository.root.mkdir(parents=True, exist_ok=True)
        # Two folders deep, so that nothing takes an incomplete model for one of the repository.
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=repository.root) as temporary:
            draft = Repository(Path(temporary) / "draft")
            folder = draft.root / new_name
            folder.mkdir(parents=True)
            on_step(f"{name} to {target}")
            file = folder / TARGETS[target].file
            sections = _write_file(path, manifest, target, file, precision)
            changes = {
                "name": new_name,
                "description": f"{manifest.description} ({name} as {variant})".strip(),
                "format": target,
                "file": file.name,
                "sha256": tree_sha256(file),
                "precision": precision,
                "converted_from": manifest.converted_from or {"model": name, "sha256": manifest.sha256},
                **sections,
            }
            converted = derived_manifest(manifest, labels, changes)
            write_manifest(converted, folder)
            on_step(f"{new_name} against {name}")
            reference = repository.source(stored) or stored
            share = _mean_agreement(reference, draft.find(new_name), frames)
            converted = converted.model_copy(update={"agreement": share})
            write_manifest(converted, folder)
            if final.exists():
                final.rename(Path(temporary) / "replaced")
            folder.rename(final)
    except OSError as error:
        raise ConversionError(target, f"{error.filename or final}: {error.strerror}") from error
    before, after = megabytes(path), megabytes(final / converted.file)
    return ConvertedModel(final, converted, reference.name, len(frames), before, after)


def _write_file(path: Path, manifest: Manifest, target: str, file: Path, precision: Precision) -> dict[str, Any]:
    """Writes the model's file; returns the manifest keys that describe it."""
    half = precision is Precision.FP16
    try:
        if target == "openvino":
            return _write_openvino(path, manifest, file, half=half)
        if manifest.format == "onnx":
            onnx_file = import_module("modelling.conversion.onnx_file")
            onnx_file.write_onnx(onnx_file.half_onnx(onnx_file.read_onnx(path)), file)
            return {}  # Inputs, outputs, preprocessing and postprocessing are those of the source.
        return _write_from_tensorflow(path, manifest.with_confidence_head(), target, file, half=half)
    except ModuleNotFoundError as error:
        extra = "openvino" if error.name == "openvino" else "convert"
        raise MissingExtraError(f"conversion to {target}", error.name or "a library", extra) from error


def _write_from_tensorflow(path: Path, manifest: Manifest, target: str, file: Path, *, half: bool) -> dict[str, Any]:
    import_module("cloud.engines.tensorflow.runtime")  # Before the others, because it imports TensorFlow quietly.
    graph = import_module("modelling.conversion.conversion_graph").conversion_graph(path, manifest)
    image_tensor, tensors, batch_size = IMAGES, {head: head for head in graph.heads}, graph.batch_size
    if target == "onnx":
        onnx_file = import_module("modelling.conversion.onnx_file")
        model = onnx_file.onnx_of(graph)
        onnx_file.write_onnx(onnx_file.half_onnx(model) if half else model, file)
    else:
        files = import_module("modelling.conversion.conversion_graph")
        if target == "tflite":
            batch_size = files.write_tflite(graph, file, half=half)
        elif target == "saved_model":
            files.write_saved_model(graph, file)
        else:
            files.write_frozen_graph(graph, file)
            image_tensor, tensors = graph.input_tensor, {head: f"{head}:0" for head in graph.heads}
    return end_to_end_sections(manifest, image_tensor, tensors, batch_size=batch_size)


def _write_openvino(path: Path, manifest: Manifest, folder: Path, *, half: bool) -> dict[str, Any]:
    """Writes model.xml and model.bin from any format that the OpenVINO engine reads; `half` stores float16 weights."""
    graph = import_module("cloud.engines.openvino.graph")
    runtime = import_module("cloud.engines.openvino.runtime")
    model = graph.read_end_to_end(runtime.core(), path, manifest)
    folder.mkdir()
    try:
        runtime.ov.save_model(model, folder / graph.IR_NAME, compress_to_fp16=half)
    except RuntimeError as error:
        raise ConversionError("openvino", error_reason(error)) from error
    heads = {head: head for head in manifest.heads}
    return end_to_end_sections(manifest, IMAGES, heads, batch_size=graph.model_batch_size(model))


def _mean_agreement(reference: StoredModel, converted: StoredModel, frames: Images) -> float:
    cpu = Placement(device="cpu")  # On the default engines, because `auto` depends on the host.
    with open_model(reference, None, cpu) as one, open_model(converted, None, cpu) as other:
        shares = [
            agreement(one.manifest, one.infer(frame[np.newaxis]), other.infer(frame[np.newaxis])) for frame in frames
        ]
    return float(np.mean(shares))
