"""`model convert`: a model in another format, beside the one it was made from, with what its labels lost by it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import FORMATS, Images, Placement, Precision
from cloud.models.agreement import agreement
from cloud.models.manifest import MANIFEST_NAME, Manifest
from cloud.models.repository import Repository
from modelling.conversion.derived_manifest import derived, finished, made_in
from modelling.conversion.errors import ConversionError
from modelling.conversion.targets import TARGETS, check
from shared.errors import MissingExtraError, SkylaneError
from shared.hashing import tree_sha256

IMAGES = "images"  # The input of every file that is written from TensorFlow's formats.

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Converted:
    """A model's new folder, and how it compares."""

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
        """Whether `engine: auto` may take it."""
        return self.agreement >= self.manifest.agreement_floor


def convert(
    repository: Repository,
    name: str,
    target: str,
    frames: Images,
    *,
    called: str,
    precision: Precision = Precision.FP32,
    replace: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Converted:
    """Write model `called` into the repository: `name` in the format `target`, a key of TARGETS.

    `frames`: uint8 N×H×W×3 in the model's layout, for the comparison of labels. A model appears whole or not at all.

    Raises:
        ConversionError: there is no way between the formats, the folder is there, or an operation has no other form.
        SkylaneError: the model cannot be read or run; MissingExtraError where a library is not installed.
    """
    manifest, path = repository.manifest(name), repository.file(name)
    check(manifest, name, target, precision)
    final = repository.root / called
    if final.exists() and (not replace or called == name):
        raise ConversionError(target, f"{final} is there already: choose another --name, or give --force to replace it")
    labels = repository.labels(name, manifest) if manifest.labels or manifest.labels_file else None
    try:
        repository.root.mkdir(parents=True, exist_ok=True)
        # Two folders deep, where nobody takes a half-written model for one of the repository's.
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=repository.root) as workplace:
            draft = Repository(Path(workplace) / "draft")
            folder = draft.root / called
            folder.mkdir(parents=True)
            on_step(f"{name} to {target}")
            file = folder / TARGETS[target].file
            part = _written(path, manifest, target, file, precision)
            changes = {
                "name": called,
                "description": made_in(manifest, name, target, precision),
                "format": target,
                "file": file.name,
                "sha256": tree_sha256(file),
                "precision": precision,
                "converted_from": manifest.converted_from or {"model": name, "sha256": manifest.sha256},
                **part,
            }
            made = derived(manifest, labels, changes)
            _write(made, folder)
            on_step(f"{called} against {name}")
            reference = _reference(repository, name, manifest)
            made = made.model_copy(update={"agreement": _agreed(repository, reference, draft, called, frames)})
            _write(made, folder)
            if final.exists():
                final.rename(Path(workplace) / "replaced")
            folder.rename(final)
    except OSError as error:
        raise ConversionError(target, f"{error.filename or final}: {error.strerror}") from error
    sizes = [_megabytes(each) for each in (path, final / made.file)]
    return Converted(final, made, reference, len(frames), *sizes)


def _written(path: Path, manifest: Manifest, target: str, file: Path, precision: Precision) -> dict[str, Any]:
    """Write the model's file; returns what its manifest says of it."""
    try:
        if target == "openvino":
            return _to_openvino(path, manifest, file, half=precision is Precision.FP16)
        if manifest.format == "onnx":
            onnx_file = import_module("modelling.conversion.onnx_file")
            onnx_file.write_onnx(onnx_file.half_onnx(onnx_file.read_onnx(path)), file)
            return {}  # What lies around the model, scaling and arg max, stays where the source's manifest has it.
        return _from_tensorflow(path, manifest, target, file, half=precision is Precision.FP16)
    except ModuleNotFoundError as error:
        extra = "openvino" if error.name == "openvino" else "convert"
        raise MissingExtraError(f"conversion to {target}", error.name or "a library", extra) from error


def _from_tensorflow(path: Path, manifest: Manifest, target: str, file: Path, *, half: bool) -> dict[str, Any]:
    import_module("cloud.engines.tensorflow.library")  # First, as it imports TensorFlow quietly.
    plain = import_module("modelling.conversion.conversion_graph").plain_graph(path, manifest)
    tensors = {head: head for head in plain.heads}
    if target == "onnx":
        onnx_file = import_module("modelling.conversion.onnx_file")
        model = onnx_file.onnx_of(plain)
        onnx_file.write_onnx(onnx_file.half_onnx(model) if half else model, file)
        return finished(manifest, IMAGES, tensors, batch_size=plain.batch_size)
    files = import_module("modelling.conversion.tensorflow_files")
    if target == "tflite":
        baked = files.write_tflite(plain, file, half=half)
        return finished(manifest, IMAGES, tensors, batch_size=baked)
    if target == "saved_model":
        files.write_saved_model(plain, file)
        return finished(manifest, IMAGES, tensors, batch_size=plain.batch_size)
    files.write_frozen_graph(plain, file)
    return finished(
        manifest, plain.input_tensor, {head: f"{head}:0" for head in plain.heads}, batch_size=plain.batch_size
    )


def _to_openvino(path: Path, manifest: Manifest, file: Path, *, half: bool) -> dict[str, Any]:
    write: Callable[..., int | None] = import_module("modelling.conversion.openvino_file").write_openvino
    batch_size = write(path, manifest, file, half=half)
    return finished(manifest, IMAGES, {head: head for head in manifest.heads}, batch_size=batch_size)


def _reference(repository: Repository, name: str, manifest: Manifest) -> str:
    """The model that all conversions are compared with: the one that `name` itself was made from, where it is there."""
    source = manifest.converted_from
    try:
        is_there = source is not None and repository.manifest(source.model).sha256 == source.sha256
    except SkylaneError:
        is_there = False
    return source.model if source is not None and is_there else name


def _agreed(repository: Repository, reference: str, draft: Repository, called: str, frames: Images) -> float:
    cpu = Placement(device="cpu")
    own = FORMATS[repository.manifest(reference).format]  # Not whichever is fastest here.
    with repository.load(reference, cpu, engine=own) as one, draft.load(called, cpu) as other:
        shares = []
        for frame in frames:
            wanted, found = one.infer(frame[np.newaxis]), other.infer(frame[np.newaxis])
            shares.append(agreement(one.manifest, wanted, found))
    return float(np.mean(shares))


def _write(manifest: Manifest, folder: Path) -> None:
    (folder / MANIFEST_NAME).write_text(manifest.to_yaml(), encoding="utf-8")


def _megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files) / _MB
