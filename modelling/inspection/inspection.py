"""`skylane model inspect`: analyses a third-party model file, runs it, and drafts its manifest."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

import numpy as np

from cloud.engines.table import ENGINES, readers
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.keras_model import freeze_keras, read_keras
from cloud.engines.tensorflow.saved_model import freeze_signature, read_saved_model
from modelling.inspection.file_analysis import IR_NAME, READERS, FileAnalysis, torchscript_tensors
from modelling.inspection.graph_analysis import GraphAnalysis, ModelInterface
from modelling.inspection.model_files import copy_model, refuse_other_files
from shared import registry
from shared.errors import SkylaneError
from shared.hashing import tree_sha256
from shared.imaging.labels import MAX_LABELS, Labels, LabelsError, label_sets, read_labels
from shared.inference.engine import Engine
from shared.inference.errors import EngineError, InferenceError
from shared.inference.onnx_weights import weight_files
from shared.inference.placement import Placement
from shared.models.manifest import MANIFEST_NAME, InputSection, LabelSection, Manifest, OutputKind, OutputSection

GUESSED_SIZE = (512, 1024)  # Height and width of a graph that accepts any size.
GUESSED_CLASSES = 32  # The number of classes if the graph does not show it.

_MAP_RANK = 4  # N×H×W×C
_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".torchscript")
_SUFFIXES = {".onnx": "onnx", ".tflite": "tflite"}


class InspectionError(SkylaneError):
    """A model's folder cannot be written."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The results of an inspection."""

    path: Path
    manifest: Manifest
    interface: ModelInterface
    notes: tuple[str, ...]  # Guesses and unusual findings, one line each.


_P = ParamSpec("_P")


def _with_weights(inspect: Callable[Concatenate[Path, _P], Inspection]) -> Callable[Concatenate[Path, _P], Inspection]:
    """Lets `inspect` see an ONNX file that keeps weights in other files as a folder with copies of all of them."""

    @wraps(inspect)
    def inspect_copy(path: Path, /, *args: _P.args, **options: _P.kwargs) -> Inspection:
        refuse_other_files(path)
        if path.suffix.lower() != ".onnx" or path.is_dir() or not weight_files(path):
            return inspect(path, *args, **options)
        with tempfile.TemporaryDirectory(prefix="skylane-onnx-") as temporary:
            folder = Path(temporary) / path.stem
            try:
                copy_model(path, folder)
                return replace(inspect(folder, *args, **options), path=path)
            except EngineError as error:
                raise EngineError(path, error.problem) from error
            except OSError as error:
                raise EngineError(path, f"cannot be copied to {temporary} ({error.strerror})") from error

    return inspect_copy


@_with_weights
def inspect(
    path: Path,
    *,
    labels: Labels | None = None,
    size: tuple[int, int] | None = None,
    signature: str = "serving_default",
    trained: bool = True,
) -> Inspection:
    """Analyses a model file and runs it on noise, so inspect trusted files only.

    Args:
        path: A frozen graph (`.pb`), a SavedModel's, OpenVINO's or ONNX folder, or a Keras, ONNX, TensorFlow Lite or
            TorchScript file.
        labels: The names and colours of the classes; numbered by default.
        size: Height and width for a graph that accepts any size.
        signature: A SavedModel's signature; if it does not exist, the first one is used.
        trained: False marks the weights as random.

    Raises:
        EngineError: the file is not a model, or has no image input or no usable output.
    """
    path = path.parent if path.name in ("saved_model.pb", IR_NAME) else path
    notes: list[str] = []
    kind, analysis, signature = _read(path, signature, size, notes)
    interface = analysis.interface()
    notes.extend(interface.guesses)
    notes.extend(f"not needed for the output: {tensor}" for tensor in interface.unused)
    height, width = _size(path, interface, size, notes)
    scale, reason = analysis.scale(interface.image)
    notes.append(reason)
    notes.append("a graph does not declare its channel order: rgb8 is guessed (input.layout), and crop (input.resize)")
    output = OutputSection(tensor=interface.output.name, kind=interface.kind)
    boxes = interface.boxes and OutputSection(tensor=interface.boxes.name, kind=OutputKind.BOXES)
    manifest = Manifest(
        task=_task(interface),
        format=kind,
        file=path.name,
        sha256=tree_sha256(path),
        trained=trained,
        signature=signature,
        input=InputSection.model_validate(
            {
                "tensor": interface.image.name,
                "dtype": interface.image.dtype,
                "height": height,
                "width": width,
                "scale": scale,
                "constants": interface.constants,
            }
        ),
        confidence=_confidence(interface, notes) if isinstance(analysis, FileAnalysis) else None,
        output=None if boxes else output,
        outputs={"boxes": boxes, "scores": output} if boxes else {},
        labels=_labels(interface, labels, notes),
    )
    random = analysis.random_operations(interface.output)
    if random:
        notes.append(f"the output depends on random operations ({', '.join(random[:3])}): dropout or noise")
    _run_twice(path, manifest, notes)
    return Inspection(path, manifest, interface, tuple(notes))


def write(inspection: Inspection, folder: Path, *, replace: bool = False) -> Path:
    """Copies the model's file into a model's folder and writes `model.yaml`, whose path it returns.

    Raises:
        InspectionError: a manifest exists and `replace` is false, or the folder cannot be written.
    """
    path = folder / MANIFEST_NAME
    if path.exists() and not replace:
        raise InspectionError(f"{path} exists already: give --force to replace it")
    target = folder / inspection.manifest.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        copy_model(inspection.path, target)
        if tree_sha256(target) != inspection.manifest.sha256:
            raise InspectionError(
                f"{target} is not what was inspected: a file changed meanwhile, or {target.name} has others: remove it"
            )
        path.write_text(inspection.manifest.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise InspectionError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error
    return path


def numbered_labels(count: int) -> Labels:
    """Returns the names `class-0`, `class-1` and so on, with distinct colours."""
    return Labels(
        tuple(f"class-{number}" for number in range(count)), tuple(_spread_colour(number) for number in range(count))
    )


def _read(
    path: Path, signature: str, size: tuple[int, int] | None, notes: list[str]
) -> tuple[str, GraphAnalysis | FileAnalysis, str]:
    """Returns the format, the analysis, and the signature that was used."""
    if path.suffix.lower() in _KERAS_SUFFIXES:
        graph, inputs, outputs = freeze_keras(read_keras(path), path)
        return "keras", GraphAnalysis(graph, path, inputs, outputs), signature
    form = _SUFFIXES.get(path.suffix.lower()) or _folder_format(path)
    if form is not None:
        return form, FileAnalysis(path, *READERS[form](path)), signature
    if path.suffix.lower() in _TORCHSCRIPT_SUFFIXES:
        return "torchscript", FileAnalysis(path, *torchscript_tensors(path, size)), signature
    if not path.is_dir():
        return "frozen_graph", GraphAnalysis(read_graph(path), path), signature
    loaded = read_saved_model(path)
    names = sorted(loaded.signatures)
    if not names:
        raise EngineError(path, "has no signatures: save it with one, as Keras's model.export does")
    if signature not in names:
        notes.append(f"the model has no signature {signature!r}: took {names[0]!r} of {', '.join(names)}")
        signature = names[0]
    graph, inputs, outputs = freeze_signature(loaded.signatures[signature], path)
    return "saved_model", GraphAnalysis(graph, path, inputs, outputs), signature


def _folder_format(path: Path) -> str | None:
    if (path / IR_NAME).is_file():
        return "openvino"
    is_other = not path.is_dir() or (path / "saved_model.pb").exists()
    return "onnx" if not is_other and any(each.suffix.lower() == ".onnx" for each in path.iterdir()) else None


def _task(interface: ModelInterface) -> str:
    if interface.boxes is not None:
        return "detection"
    is_classifier = interface.kind in (OutputKind.LOGITS, OutputKind.PROBABILITIES)
    return "classification" if is_classifier else "segmentation"


def _confidence(interface: ModelInterface, notes: list[str]) -> str | None:
    """Returns the declared output with the scores of a mask of class ids, if there is exactly one."""
    scores = [
        each for each in interface.others if each.dtype.startswith("float") and len(each.shape or ()) == _MAP_RANK
    ]
    if interface.kind is not OutputKind.CLASS_IDS or len(scores) != 1:
        return None
    notes.append(f"{scores[0].name} is assumed to be the scores before softmax: if it is not, remove confidence")
    return scores[0].name


def _size(path: Path, interface: ModelInterface, size: tuple[int, int] | None, notes: list[str]) -> tuple[int, int]:
    """Returns the height and width of the input: the graph's if they are fixed, else `size` or a guess."""
    shape = interface.image.shape or (None, None, None, None)
    if shape[0] is not None:
        notes.append(f"the input has a fixed batch size of {shape[0]}: frames are run {shape[0]} at a time")
    default = size or GUESSED_SIZE
    found = (shape[1] or default[0], shape[2] or default[1])
    if size is not None and found != size:
        raise EngineError(path, f"its input is {found[0]}×{found[1]}: leave the size out")
    if size is None and None in shape[1:3]:
        notes.append(f"the graph accepts any input size: {found[0]}×{found[1]} is guessed (--size)")
    return found


def _labels(interface: ModelInterface, labels: Labels | None, notes: list[str]) -> tuple[LabelSection, ...]:
    if labels is None:
        count = min(interface.classes or GUESSED_CLASSES, MAX_LABELS)
        unknown = "" if interface.classes else ", and the graph does not show their number"
        notes.append(f"classes are numbered, because they have no names{unknown}: give --labels, or edit labels")
        notes.extend(f"{count} classes: --labels {name} has as many" for name in _fitting_sets(interface.classes))
        labels = numbered_labels(count)
    elif interface.classes is not None and len(labels.names) != interface.classes:
        fitting = "".join(f", such as {name}" for name in _fitting_sets(interface.classes)[:1])
        raise LabelsError(
            f"the labels name {len(labels.names)} classes, and the model has {interface.classes}: "
            f"give --labels with {interface.classes}{fitting}"
        )
    return tuple(
        LabelSection(name=name, colour=colour) for name, colour in zip(labels.names, labels.colours, strict=True)
    )


def _fitting_sets(classes: int | None) -> list[str]:
    """Returns the names of the label sets of that many classes."""
    return [name for name, path in label_sets().items() if len(read_labels(path).names) == classes]


def _run_twice(path: Path, manifest: Manifest, notes: list[str]) -> None:
    """Loads the model by its draft manifest, runs it twice on the same noise, and compares the outputs."""
    engine: Engine = registry.load("engine", ENGINES, readers(manifest.format)[0])(
        path, manifest, Placement(device="cpu")
    )
    shape = (engine.batch_size or 1, manifest.input.height, manifest.input.width, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    try:
        first, second = engine.infer(noise), engine.infer(noise)
    except InferenceError as error:
        notes.append(f"a run on noise failed: {error}")
        return
    finally:
        engine.close()
    if any(not np.array_equal(first[head], second[head]) for head in first):
        notes.append("the same image gave two different outputs: dropout or noise is on and cannot be switched off")
    if "mask" in first and first["mask"].max() >= len(manifest.labels):
        notes.append(
            f"the model predicts class {first['mask'].max()}, and only {len(manifest.labels)} are named: name all"
        )


def _spread_colour(number: int) -> tuple[int, int, int]:
    """Distributes the bits of a number over red, green and blue, most significant first, as in the PASCAL VOC palette."""
    channels = [0, 0, 0]
    for position in range(3):
        for channel in range(3):
            channels[channel] |= (number >> (3 * position + channel) & 1) << (7 - position)
    return channels[0], channels[1], channels[2]
