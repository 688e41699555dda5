"""`skylane model inspect`: analyses a third-party model file, runs it, and drafts its manifest."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np

from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.keras_model import freeze_keras, read_keras
from cloud.engines.tensorflow.saved_model import freeze_signature, read_saved_model
from cloud.models.opening import open_model
from modelling.inspection import image_run
from modelling.inspection.file_analysis import IR_NAME, READERS, FileAnalysis, onnx_class_names, torchscript_tensors
from modelling.inspection.graph_analysis import GraphAnalysis
from modelling.inspection.image_input import image_section
from modelling.inspection.model_files import copy_model, refuse_other_files
from modelling.inspection.model_tensors import Tensor, format_tensors, is_image
from modelling.inspection.output_rule import Arrays, Options, OutputRule, Reading, UndecidedError
from shared import registry
from shared.config import validate
from shared.errors import SkylaneError, suggestion
from shared.files import tree_sha256, write_file
from shared.imaging.labels import MAX_LABELS, Labels, LabelsError, label_sets, read_labels
from shared.inference.engine import Engine, EngineError, Images, InferenceError, Outputs
from shared.inference.onnx_weights import weight_files
from shared.inference.pre_postprocess import CHANNEL_AXES
from shared.inference.table import ENGINES, readers
from shared.inference.tensor_binding import find_tensor
from shared.models.manifest import (
    MANIFEST_NAME,
    DetectionSection,
    InputSection,
    LabelSection,
    Manifest,
    OutputKind,
    OutputSection,
    Placement,
)
from shared.models.repository import Repository, StoredModel
from shared.sanitize import printable
from shared.task import task_named

GUESSED_CLASSES = 32  # The number of classes if the graph does not show it.

_MAP_RANK = 4  # N×H×W×C
_ONE_CHANNEL = ("background", "foreground")  # The labels of a mask with one channel.
_BACKGROUND = ("background", "???")  # Names of a background in label files, without underscores.
_COCO_IDS = 90  # Class ids of the usual detectors that contain the suppression and do not show the number.
_KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".torchscript")
_GREY = (
    "put a conversion to grey before its first layer, such as a 1×1 convolution with the weights 0.299, 0.587 and 0.114 of "
    "red, green and blue, and export it again with an input of three channels"
)
_SUFFIXES = {".onnx": "onnx", ".tflite": "tflite"}


class InspectionError(SkylaneError):
    """A model's folder cannot be written."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The results of an inspection."""

    path: Path
    manifest: Manifest
    image: Tensor
    interface: Reading
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
                return replace_fields(inspect(folder, *args, **options), path=path)
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
    signature: str | None = None,
    options: Options = Options(),  # noqa: B008 - frozen.
) -> Inspection:
    """Analyses a model file and runs it on noise, so inspect trusted files only.

    Args:
        path: A frozen graph (`.pb`), a SavedModel's, OpenVINO's or ONNX folder, or a Keras, ONNX, TensorFlow Lite or
            TorchScript file.
        labels: The names and colours of the classes; numbered by default.
        size: Height and width for a graph that accepts any size.
        signature: A SavedModel's signature; by default `serving_default`, or the only one.
        options: What the user states about the model.

    Raises:
        EngineError: the file is not a model, has no image input or no usable output, or fails on noise.
        UndecidedError: several readings are possible; the message names the option that decides.
    """
    path = path.parent if path.name in ("saved_model.pb", IR_NAME) else path
    notes: list[str] = []
    kind, analysis, signature = _read(path, size, notes, signature)
    images, outputs = list(filter(is_image, analysis.inputs)), analysis.outputs()
    grey = [each for each in analysis.inputs if is_image(each, 1)]
    if grey and not images:
        raise EngineError(path, f"takes {grey[0]}, an image of one channel, and frames have three: {_GREY}")
    if not images:
        inputs = "; ".join([format_tensors(analysis.inputs), *notes])
        raise EngineError(path, f"takes no image (N×H×W×3 or N×3×H×W): its inputs are {inputs}")
    used = analysis.used(images, outputs or analysis.inner_outputs()) or images
    image = used[0]
    if len(used) > 1:
        notes.append(f"{len(used)} inputs can be an image ({format_tensors(used)}): took {image.name}")
    draft: dict[str, Any] = {
        "format": kind,
        "file": path.name,
        "sha256": tree_sha256(path),
        "signature": signature,
    }

    def observe(tensors: Sequence[Tensor], section: InputSection | None = None) -> Arrays:
        """Returns the values of tensors on noise."""
        section = section or image_input
        needed = analysis.other_inputs(image, tensors)[0]
        heads = {f"t{place}": {"tensor": each.name, "kind": "tensor"} for place, each in enumerate(tensors)}
        keys = draft | {"task": "tensors", "outputs": heads}
        manifest = validate(path, keys | {"input": section.model_copy(update={"constants": needed})}, Manifest)
        values = _on_noise(path, manifest)[0]
        return {each.name: values[f"t{place}"] for place, each in enumerate(tensors)}

    def works(section: InputSection) -> bool:
        try:
            return bool(observe(outputs[:1], section))
        except EngineError:
            return False

    image_input, is_planar, found = image_section(path, image, options, size, scale=analysis.scale, works=works)
    is_stated, labels = labels is not None, labels or _own_labels(path, kind, notes)
    if labels is not None:
        stated = {"labels": len(labels.names), "starts_with_background": _starts_with_background(labels)}
        options = options.model_copy(update=stated)
    batch = image.shape[0] if image.shape else None
    rule = OutputRule(path, image_input, options, observe, batch=batch, planar=is_planar)
    reading = rule.read(outputs, analysis.inner_outputs)
    if labels is not None and not is_stated:
        is_used = reading.classes in (None, len(labels.names), len(labels.names) + reading.has_background)
        notes.append(
            f"the file's metadata names {len(labels.names)} classes: {'' if is_used else 'not '}used (--labels)"
        )
        labels = labels if is_used else None
    constants, unused, needs = analysis.other_inputs(image, [tensor for tensor, _ in reading.heads.values()])
    notes += [*reading.notes, *needs, *(f"not needed for the output: {tensor}" for tensor in unused), *found]
    task = task_named(reading.task)
    has_one_head, has_labels = len(task.heads) == 1, task.labels[0] > 0
    manifest = validate(
        path,
        draft
        | {
            "task": reading.task,
            "input": image_input.model_copy(update={"constants": constants}),
            "confidence": _confidence(path, reading, options.confidence, notes),
            **({"output": next(iter(reading.sections.values()))} if has_one_head else {"outputs": reading.sections}),
            "labels": _labels(reading, labels or _known_labels(reading, notes), notes) if has_labels else (),
            **_settings(path, reading, labels, notes),
        },
        Manifest,
    )
    random = analysis.random_operations(reading.output)
    if random:
        notes.append(f"the output depends on random operations ({', '.join(random[:3])}): dropout or noise")
    _check_run(path, manifest.with_confidence_head(), notes, is_named=is_stated)
    return Inspection(path, manifest, image, reading, tuple(map(printable, notes)))


def write(inspection: Inspection, folder: Path, *, replace: bool = False) -> Path:
    """Writes a model's folder, with `model.yaml` and a copy of the model's file; returns the path of `model.yaml`.

    The folder changes only after the written model was loaded from another place and run on noise.

    Raises:
        InspectionError: a manifest exists and `replace` is false, or the folder cannot be written.
        SkylaneError: the written model does not run.
    """
    path, folder = folder / MANIFEST_NAME, folder.resolve()
    if path.exists() and not replace:
        raise InspectionError(f"{path} exists already: give --force to replace it")
    manifest = inspection.manifest
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Two folders deep, so that nothing takes an unproven model for one of the repository.
        with tempfile.TemporaryDirectory(prefix=".inspecting-", dir=folder.parent) as temporary:
            draft = Path(temporary) / "draft" / folder.name
            draft.mkdir(parents=True)
            copy_model(inspection.path, draft / manifest.file)
            if tree_sha256(draft / manifest.file) != manifest.sha256:
                raise InspectionError(f"{inspection.path} is not what was inspected: it changed meanwhile")
            write_file(draft / MANIFEST_NAME, manifest.to_yaml())
            _prove(Repository(draft.parent).find(folder.name))
            folder.mkdir(exist_ok=True)
            target = folder / manifest.file
            if target.resolve() != inspection.path.resolve():
                if target.exists():
                    target.rename(Path(temporary) / "replaced")
                (draft / manifest.file).rename(target)
            (draft / MANIFEST_NAME).replace(path)
    except OSError as error:
        raise InspectionError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error
    return path


def _prove(stored: StoredModel) -> None:
    """Loads the written model on its default engine and makes a result from noise."""
    with open_model(stored, None, Placement(device="cpu")) as model:
        image_run.run(model, _noise(1, model.card.height, model.card.width)[0])


def numbered_labels(count: int, first: int = 0) -> Labels:
    """Returns the names `class-0`, `class-1` and so on from number `first` on, with distinct colours."""
    return Labels(
        tuple(f"class-{number + first}" for number in range(count)),
        tuple(_spread_colour(number) for number in range(count)),
    )


def _read(
    path: Path, size: tuple[int, int] | None, notes: list[str], signature: str | None
) -> tuple[str, GraphAnalysis | FileAnalysis, str]:
    """Returns the format, the analysis, and the signature that was used."""
    suffix, default = path.suffix.lower(), "serving_default"
    if signature is not None and not (path / "saved_model.pb").is_file():
        raise EngineError(path, "is no SavedModel with signatures: leave --signature out")
    if suffix in _KERAS_SUFFIXES:
        graph, inputs, outputs = freeze_keras(read_keras(path), path)
        return "keras", GraphAnalysis(graph, path, inputs, outputs), default
    form = _SUFFIXES.get(suffix) or _folder_format(path)
    if form is not None:
        return form, FileAnalysis(path, *READERS[form](path)), default
    if suffix in _TORCHSCRIPT_SUFFIXES:
        return "torchscript", FileAnalysis(path, *torchscript_tensors(path, size)), default
    if not path.is_dir():
        return "frozen_graph", GraphAnalysis(read_graph(path), path), default
    loaded = read_saved_model(path)
    names = sorted(loaded.signatures)
    if not names:
        raise EngineError(path, "has no signatures: save it with one, as Keras's model.export does")
    if signature is not None and signature not in names:
        raise EngineError(path, f"has no signature {signature!r}{suggestion(signature, names)}")
    if signature is None and default not in names and len(names) > 1:
        raise UndecidedError(path, f"has the signatures {' and '.join(names)}: give one of them as --signature")
    if signature is None and names != [default]:
        signature = default if default in names else names[0]
        notes.append(f"took the signature {signature!r} of {', '.join(names)} (--signature)")
    graph, inputs, outputs = freeze_signature(loaded.signatures[signature or default], path)
    return "saved_model", GraphAnalysis(graph, path, inputs, outputs), signature or default


def _folder_format(path: Path) -> str | None:
    if (path / IR_NAME).is_file():
        return "openvino"
    is_other = not path.is_dir() or (path / "saved_model.pb").exists()
    return "onnx" if not is_other and any(each.suffix.lower() == ".onnx" for each in path.iterdir()) else None


def _settings(path: Path, reading: Reading, labels: Labels | None, notes: list[str]) -> Mapping[str, Any]:
    """Returns the other keys of the manifest; labels that begin with the background change the number of the first class."""
    is_background = labels is not None and _starts_with_background(labels)
    if is_background and "boxes" in reading.heads and "classes" not in reading.heads:
        remedy = "give --no-object first, and labels without it, or --task tensors"
        raise EngineError(path, f"scores boxes of the first label, the background: {remedy}")
    if not is_background or "classes" not in reading.heads:
        return reading.settings
    if not reading.settings["detection"].first_class:
        raise EngineError(path, "gives classes without the background, and the labels begin with it: remove that label")
    notes.append("the labels begin with the background, so detection.first_class is 0")
    return {**reading.settings, "detection": DetectionSection()}


def _known_labels(reading: Reading, notes: list[str]) -> Labels | None:
    """Returns the labels of a model that shows the meaning, or the numbers, of its classes; None for any other."""
    if "classes" in reading.heads:
        first = reading.settings["detection"].first_class
        notes.append(
            f"classes are numbered {first} to {_COCO_IDS + first - 1}, because they have no names: give --labels"
        )
        return numbered_labels(_COCO_IDS, first)
    if reading.has_background:
        numbered = numbered_labels(reading.classes or 0)
        is_one = reading.classes == len(_ONE_CHANNEL)
        return Labels(_ONE_CHANNEL if is_one else (_BACKGROUND[0], *numbered.names[1:]), numbered.colours)
    return None


def _own_labels(path: Path, form: str, notes: list[str]) -> Labels | None:
    """Returns the class names in the file's metadata as labels; None without usable names."""
    names = onnx_class_names(path) if form == "onnx" else ()
    try:
        return Labels(names, numbered_labels(len(names)).colours) if names else None
    except LabelsError as error:
        notes.append(f"the class names in the file's metadata are not used: {error}")
        return None


def _starts_with_background(labels: Labels) -> bool:
    return labels.names[0].strip("_").lower() in _BACKGROUND


def _confidence(path: Path, reading: Reading, stated: str | None, notes: list[str]) -> OutputSection | None:
    """Returns the output with the scores per class: the stated one, or the only one beside a mask of class ids."""
    if reading.task != "segmentation":
        return None
    maps = [each for each in reading.others if each.dtype.startswith("float") and len(each.shape or ()) == _MAP_RANK]
    maps = [*maps, reading.output] if stated else maps if reading.kind is OutputKind.CLASS_IDS else []
    scores = {each.name: each for each in maps}
    if stated is None and len(scores) != 1:
        return None
    chosen = find_tensor(scores, stated or next(iter(scores)), "output", path)
    channels = {(chosen.shape or (None,) * _MAP_RANK)[axis] for axis in CHANNEL_AXES.values()}
    is_of_classes = None in channels or (1 not in channels and reading.classes in (None, *channels))
    if stated is None and (chosen.operation == "sigmoid" or not is_of_classes):
        return None
    if chosen.operation == "sigmoid":
        raise EngineError(path, f"{chosen} has sigmoids, and a confidence needs scores around one softmax: name others")
    is_softmax = chosen.operation == "softmax"
    kind = OutputKind.PROBABILITIES if is_softmax else OutputKind.SCORES
    meaning = "probabilities of classes" if is_softmax else "scores before softmax"
    notes.append(f"{chosen.name} is assumed to be the {meaning}: if it is not, remove confidence")
    axes = reading.axes if chosen is reading.output else None
    return OutputSection(tensor=chosen.name, kind=kind, axes=axes)


def _labels(interface: Reading, labels: Labels | None, notes: list[str]) -> tuple[LabelSection, ...]:
    if labels is not None and interface.has_background and len(labels.names) + 1 == interface.classes:
        labels = Labels((_BACKGROUND[0], *labels.names), ((0, 0, 0), *labels.colours))
    if labels is not None and interface.classes is None:
        notes.append(f"the file does not show its number of classes: check that the {len(labels.names)} labels are all")
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


def _on_noise(path: Path, manifest: Manifest) -> list[Outputs]:
    """Loads a model by its draft manifest and returns its outputs of two runs on the same noise.

    Raises:
        EngineError: the model does not run.
    """
    engine: Engine = registry.load("engine", ENGINES, readers(manifest.format)[0])(
        path, manifest, Placement(device="cpu")
    )
    noise = _noise(engine.batch_size or 1, manifest.input.height, manifest.input.width)
    try:
        return [{head: values.copy() for head, values in engine.infer(noise).items()} for _ in range(2)]
    except InferenceError as error:
        size = f"{manifest.input.height}×{manifest.input.width}"
        raise EngineError(path, f"a run on noise of {size} failed: {error}") from error
    finally:
        engine.close()


def _noise(count: int, height: int, width: int) -> Images:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def _check_run(path: Path, manifest: Manifest, notes: list[str], *, is_named: bool) -> None:
    """Runs the model twice by its draft manifest and notes what is unusual in its outputs.

    Raises:
        LabelsError: the model predicts a class that the user's labels do not name.
    """
    first, second = _on_noise(path, manifest)
    if any(not np.array_equal(first[head], second[head], equal_nan=True) for head in first):
        notes.append("the same image gave two different outputs: dropout or noise is on and cannot be switched off")
    if "mask" not in first:
        return
    highest = first["mask"].max()
    if highest >= len(manifest.labels):
        problem = f"the model predicts class {highest}, and only {len(manifest.labels)} are named: give --labels"
        if is_named:
            raise LabelsError(f"{path}: {problem} with all")
        notes.append(problem)
    if highest == first["mask"].min():
        notes.append(f"every pixel of noise is class {highest}: check a mask of a real image with `skylane model run`")


def _spread_colour(number: int) -> tuple[int, int, int]:
    """Distributes the bits of a number over red, green and blue, most significant first, as in the PASCAL VOC palette."""
    channels = [0, 0, 0]
    for position in range(3):
        for channel in range(3):
            channels[channel] |= (number >> (3 * position + channel) & 1) << (7 - position)
    return channels[0], channels[1], channels[2]
