"""`model inspect`: reads a foreign model file, finds how to feed and read it, tries it, and drafts its manifest."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloud.engines.engine import ENGINES, FORMATS, Engine, EngineError, InferenceError, Placement
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.keras_model import freeze_keras, read_keras
from cloud.engines.tensorflow.saved_model import freeze_signature, read_saved_model
from cloud.models.manifest import MANIFEST_NAME, InputSection, LabelSection, Manifest, OutputKind, OutputSection
from modelling.inspection.file_analysis import IR_NAME, READERS, FileAnalysis
from modelling.inspection.graph_analysis import GraphAnalysis, ModelInterface
from shared import registry
from shared.errors import SkylaneError
from shared.hashing import tree_sha256
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages.model_card import Task

GUESSED_SIZE = (512, 1024)  # Height and width where the graph leaves them open.
GUESSED_CLASSES = 32  # Where the graph does not tell.

_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".torchscript")
_SUFFIXES = {".onnx": "onnx", ".tflite": "tflite"}


class InspectionError(SkylaneError):
    """A model's folder cannot be written."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in a model's file."""

    path: Path
    manifest: Manifest
    ends: ModelInterface
    notes: tuple[str, ...]  # Every guess, and whatever is unusual, a line each.


def inspect(
    path: Path,
    *,
    labels: Labels | None = None,
    size: tuple[int, int] | None = None,
    signature: str = "serving_default",
    trained: bool = True,
) -> Inspection:
    """Read a frozen graph (`.pb`), a SavedModel's or OpenVINO's folder, a Keras, ONNX or TensorFlow Lite file; run it on noise.

    `labels`: named where they are known. `size`: height and width for a graph that leaves them open. `signature`: of a
    SavedModel; another is taken, and told, where it has none of that name. Inspecting runs the model: inspect only
    files that you trust.

    Raises:
        EngineError: it is no such file, or nothing in it takes a picture and gives a mask.
    """
    path = path.parent if path.name in ("saved_model.pb", IR_NAME) else path
    notes: list[str] = []
    kind, analysis, signature = _read(path, signature, notes)
    ends = analysis.ends()
    notes.extend(ends.guesses)
    notes.extend(f"not needed for the answer: {tensor}" for tensor in ends.spare)
    height, width = _size(path, ends, size, notes)
    scale, reason = analysis.scale(ends.picture)
    notes.append(reason)
    notes.append(
        "a graph does not tell the order of its colours: rgb8 is guessed (input.layout), and crop (input.resize)"
    )
    answer = OutputSection(tensor=ends.answer.name, kind=ends.kind)
    boxes = ends.boxes and OutputSection(tensor=ends.boxes.name, kind=OutputKind.BOXES)
    manifest = Manifest(
        task=_task(ends),
        format=kind,
        file=path.name,
        sha256=tree_sha256(path),
        trained=trained,
        signature=signature,
        input=InputSection.model_validate(
            {
                "tensor": ends.picture.name,
                "dtype": ends.picture.dtype,
                "height": height,
                "width": width,
                "scale": scale,
                "constants": ends.constants,
            }
        ),
        output=None if boxes else answer,
        outputs={"boxes": boxes, "scores": answer} if boxes else {},
        labels=_labels(ends, labels, notes),
    )
    random = analysis.random_operations(ends.answer)
    if random:
        notes.append(f"random operations on the way to the answer ({', '.join(random[:3])}): dropout or noise")
    _try(path, manifest, notes)
    return Inspection(path, manifest, ends, tuple(notes))


def write(inspection: Inspection, folder: Path, *, replace: bool = False) -> Path:
    """Write a model's folder: the model's file, copied there unless it is there, and `model.yaml`. Returns the latter.

    Raises:
        InspectionError: there is a manifest already and `replace` is false, or the folder cannot be written.
    """
    path = folder / MANIFEST_NAME
    if path.exists() and not replace:
        raise InspectionError(f"{path} is there already: give --force to write it anew")
    target = folder / inspection.path.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.resolve() != inspection.path.resolve():
            if inspection.path.is_dir():
                shutil.copytree(inspection.path, target, dirs_exist_ok=True)
            else:
                shutil.copyfile(inspection.path, target)
        path.write_text(inspection.manifest.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise InspectionError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error
    return path


def numbered_labels(count: int) -> Labels:
    """Names and colours for classes that nobody named: `class-0` and on, each colour unlike its neighbours'."""
    return Labels(
        tuple(f"class-{number}" for number in range(count)), tuple(_spread_colour(number) for number in range(count))
    )


def _read(path: Path, signature: str, notes: list[str]) -> tuple[str, GraphAnalysis | FileAnalysis, str]:
    """The format, the analysed graph and, of a SavedModel, the signature that was taken."""
    if path.suffix.lower() in _KERAS_SUFFIXES:
        graph, inputs, outputs = freeze_keras(read_keras(path), path)
        return "keras", GraphAnalysis(graph, path, inputs, outputs), signature
    form = _SUFFIXES.get(path.suffix.lower()) or ("openvino" if (path / IR_NAME).is_file() else None)
    if form is not None:
        return form, FileAnalysis(path, *READERS[form](path)), signature
    if path.suffix.lower() in _TORCHSCRIPT_SUFFIXES:
        raise EngineError(path, "is TorchScript, which tells no shapes: write its model.yaml by hand")
    if not path.is_dir():
        return "frozen_graph", GraphAnalysis(read_graph(path), path), signature
    loaded = read_saved_model(path)
    names = sorted(loaded.signatures)
    if not names:
        raise EngineError(path, "has no signatures: save it with one, as model.export does")
    if signature not in names:
        notes.append(f"there is no signature {signature!r}: took {names[0]!r} of {', '.join(names)}")
        signature = names[0]
    graph, inputs, outputs = freeze_signature(loaded.signatures[signature], path)
    return "saved_model", GraphAnalysis(graph, path, inputs, outputs), signature


def _task(ends: ModelInterface) -> Task:
    if ends.boxes is not None:
        return Task.DETECTION
    return Task.CLASSIFICATION if ends.kind in (OutputKind.LOGITS, OutputKind.PROBABILITIES) else Task.SEGMENTATION


def _size(path: Path, ends: ModelInterface, size: tuple[int, int] | None, notes: list[str]) -> tuple[int, int]:
    """Height and width of the input: the graph's, where it has them."""
    shape = ends.picture.shape or (None, None, None, None)
    if shape[0] is not None:
        notes.append(f"a batch of {shape[0]} is baked into the input: frames are run {shape[0]} at a time")
    wanted = size or GUESSED_SIZE
    found = (shape[1] or wanted[0], shape[2] or wanted[1])
    if size is not None and found != size:
        raise EngineError(path, f"its input is {found[0]}×{found[1]}: leave the size out")
    if size is None and None in shape[1:3]:
        notes.append(f"the graph leaves its input's size open: {found[0]}×{found[1]} is guessed (--size)")
    return found


def _labels(ends: ModelInterface, labels: Labels | None, notes: list[str]) -> tuple[LabelSection, ...]:
    if labels is None:
        count = min(ends.classes or GUESSED_CLASSES, MAX_LABELS)
        known = "" if ends.classes else ", and the graph does not tell how many they are"
        notes.append(f"classes are numbered, as nobody named them{known}: give --labels, or name them in labels")
        labels = numbered_labels(count)
    elif ends.classes is not None and len(labels.names) != ends.classes:
        notes.append(f"the graph has {ends.classes} classes, the labels name {len(labels.names)}")
    return tuple(
        LabelSection(name=name, colour=colour) for name, colour in zip(labels.names, labels.colours, strict=True)
    )


def _try(path: Path, manifest: Manifest, notes: list[str]) -> None:
    """Run the drafted manifest twice on the same noise: it must load, answer, and answer the same."""
    engine: Engine = registry.load("engine", ENGINES, FORMATS[manifest.format])(path, manifest, Placement(device="cpu"))
    shape = (engine.batch_size or 1, manifest.input.height, manifest.input.width, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    try:
        first, second = engine.infer(noise), engine.infer(noise)
    except InferenceError as error:
        notes.append(f"a try on noise failed: {error}")
        return
    finally:
        engine.close()
    if any(not np.array_equal(first[head], second[head]) for head in first):
        notes.append("the same picture gave two different answers: dropout or noise is on and cannot be switched off")
    if "mask" in first and first["mask"].max() >= len(manifest.labels):
        notes.append(
            f"noise was given class {first['mask'].max()}, and only {len(manifest.labels)} are named: name all"
        )


def _spread_colour(number: int) -> tuple[int, int, int]:
    """The bits of a number dealt out to red, green and blue, highest first, as the PASCAL VOC palette does."""
    channels = [0, 0, 0]
    for place in range(3):
        for channel in range(3):
            channels[channel] |= (number >> (3 * place + channel) & 1) << (7 - place)
    return channels[0], channels[1], channels[2]
