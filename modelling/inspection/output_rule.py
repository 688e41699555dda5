"""The rule, the same for all formats, by which the outputs of a third-party model get a task and a meaning.

The shapes, the last operations of the graph and a run on noise decide. Where several readings remain, the error names the
option that decides.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.inspection.model_tensors import Tensor, format_tensors
from shared.imaging.frames import Layout
from shared.imaging.labels import MAX_LABELS, MAX_MASK_LABELS
from shared.inference.errors import EngineError
from shared.inference.map_axes import CHANNEL_AXES, MAP_RANK, channel_axis, fit, fitting_axes
from shared.messages.tensors import DTYPES, MAX_TENSORS
from shared.models.manifest import (
    MASK,
    AxisOrder,
    BoxFormatSection,
    BoxOrder,
    DetectionSection,
    InputSection,
    OutputKind,
    OutputSection,
)
from shared.tasks.task import task_named

Arrays = Mapping[str, npt.NDArray[Any]]

_OUTPUT_NAMES = ("prediction", "output", "semantic", "argmax", "softmax", "scores", "logits", "mask", "classes")
_SELECTION = ("boxes", "classes", "scores", "count")  # The outputs of TFLite_Detection_PostProcess in their order.
_SELECTION_KINDS = {
    "scores": OutputKind.PROBABILITIES,
    "boxes": OutputKind.BOXES,
    "classes": OutputKind.CLASSES,
    "count": OutputKind.COUNT,
}
_SELECTION_NAME = re.compile(r"(?:^|[/:.])(?:detection_(boxes|classes|scores)|(num)_detections)(?::0)?$")
_COCO_IDS = 90  # The highest class id of the detectors of the TensorFlow Object Detection API.
_CORNERS = 4
_ANCHORS_RANK = 3  # N×A×4 or N×A×C
_MIN_FLAT_SIDE = 8  # Rows and columns of a map N×H×W; smaller ones are not a map.
_UNIT_SCALE = 1 / 256  # TensorFlow Lite's scale of a quantised sigmoid or softmax.
_ROUNDING = 1e-4
_TENSORS = "--task tensors serves the outputs as they are"


class UndecidedError(EngineError):
    """The file allows several readings, or none; the message names the option that decides."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user states about a model; None: the model decides."""

    task: str | None = None
    output_kind: OutputKind | None = None
    output_axes: AxisOrder | None = None
    axes: AxisOrder | None = None
    layout: Layout | None = None
    normalize: str | None = None  # A key of NORMALIZATIONS.
    labels: int | None = None  # The number of labels.


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of a model's outputs."""

    task: str
    heads: Mapping[str, tuple[Tensor, OutputKind]]  # By the manifest's head; the first one is the main one.
    classes: int | None = None  # None if unknown.
    axes: AxisOrder | None = None  # Of a segmentation's scores.
    settings: Mapping[str, Any] = field(default_factory=dict)  # Further keys of the manifest.
    notes: Sequence[str] = ()
    others: tuple[Tensor, ...] = ()  # Possible outputs that were not chosen.

    @property
    def output(self) -> Tensor:
        """The main output."""
        return next(iter(self.heads.values()))[0]

    @property
    def kind(self) -> OutputKind:
        """The kind of the main output."""
        return next(iter(self.heads.values()))[1]

    @property
    def sections(self) -> dict[str, OutputSection]:
        """The outputs in the manifest."""
        return {
            head: OutputSection(tensor=tensor.name, kind=kind, axes=self.axes)
            for head, (tensor, kind) in self.heads.items()
        }


class OutputRule:
    """Reads the outputs of one model."""

    def __init__(
        self,
        path: Path,
        image: InputSection,
        options: Options,
        observe: Callable[[Sequence[Tensor]], Arrays],
        *,
        batch: int | None,
        planar: bool,
    ) -> None:
        """`observe` returns the values of tensors by name for a batch of noise; `batch` is the size that the file fixes."""
        self._path, self._image, self._options, self._observe, self._batch = path, image, options, observe, batch or 1
        self._planar = planar
        self._seen: dict[str, npt.NDArray[Any]] = {}

    def read(self, outputs: Sequence[Tensor], inner: Callable[[], Sequence[Tensor]]) -> Reading:
        """Returns the meaning of the outputs, of which the first ones are preferred.

        Args:
            outputs: The outputs of the model.
            inner: Returns the tensors inside the graph that may be class ids, if no output has a meaning.

        Raises:
            UndecidedError: several readings are possible, or none.
            EngineError: the model fails on noise.
        """
        known, task = self._usable(outputs), self._options.task
        readers: dict[str, Callable[[list[Tensor]], Reading | None]] = {
            "selection": self._selection,
            "segmentation": self._segmentation,
            "detection": self._detection,
            "classification": self._classification,
            "tensors": self._tensors,
        }
        chosen = [readers[task]] if task else list(readers.values())[:-1]
        reading = next(filter(None, (reader(known) for reader in chosen)), None)
        if reading is None and task in (None, "segmentation"):
            reading = self._segmentation(self._usable(inner()))
        if reading is None:
            raise self._undecided(
                "gives no class ids (N×H×W) or scores (N×C×H×W) of pixels, no scores of an image (N×C), and no boxes "
                f"(N×A×4) with scores (N×A×C){f' for task {task}' if task else ''}: its outputs are "
                f"{format_tensors(outputs[:8])}; {_TENSORS}, --output-axes takes maps of another aspect ratio"
            )
        self._check_options(reading)
        return reading

    def _undecided(self, problem: str) -> UndecidedError:
        return UndecidedError(self._path, problem)

    def _usable(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the tensors of numbers with one row per image, with shapes from a run on noise if none are declared."""
        numbers = [each for each in tensors if each.dtype in (*DTYPES, "bool")]
        unknown = [each for each in numbers if each.dtype in DTYPES and (each.shape is None or None in each.shape)]
        seen = self._values(unknown[:MAX_TENSORS])
        known = [replace(each, shape=seen[each.name].shape) if each.name in seen else each for each in numbers]
        return [each for each in known if each.shape and 0 not in each.shape and each.shape[0] in (None, self._batch)]

    def _values(self, tensors: Sequence[Tensor]) -> dict[str, npt.NDArray[Any]]:
        """Returns the values of tensors on noise; each tensor is observed once."""
        missing = [each for each in tensors if each.name not in self._seen]
        if missing:
            self._seen.update(self._observe(missing))
        return {each.name: self._seen[each.name] for each in tensors}

    def _tensors(self, outputs: list[Tensor]) -> Reading | None:
        heads: dict[str, tuple[Tensor, OutputKind]] = {}
        for number, each in enumerate(outputs[:MAX_TENSORS]):
            name = re.sub(r"[^A-Za-z0-9_-]+", "_", each.name.removesuffix(":0")).strip("_")[:64]
            if not name or name in heads:
                name = f"output-{number}"
            heads[name] = each, OutputKind.TENSOR
        return Reading("tensors", heads) if heads else None

    def _segmentation(self, outputs: list[Tensor]) -> Reading | None:
        maps = [each for each in outputs if self._is_map(each)]
        if not maps:
            return None

        def rank(tensor: Tensor) -> tuple[bool, bool, bool]:
            named = any(word in tensor.name.lower() for word in _OUTPUT_NAMES)
            return not tensor.is_float or tensor.operation == "argmax", named, tensor.operation == "argmax"

        ranked = sorted(maps, key=rank, reverse=True)
        chosen = ranked[0]
        notes = [f"other outputs are possible: {format_tensors(ranked[1:4])}; took {chosen}"] if ranked[1:] else []
        if self._is_ids(chosen):
            kind, axes, classes = self._options.output_kind or OutputKind.CLASS_IDS, None, chosen.classes
            if chosen.dtype == "bool":
                classes = 2
            elif classes is None and not chosen.is_float:
                highest = int(self._values([chosen])[chosen.name].max())
                classes = highest + 1 if highest >= MAX_MASK_LABELS else None
        else:
            if self._options.task is None:
                self._refuse_parts(chosen, outputs)
            kind, axes, classes = self._scores(chosen, notes)
        if classes is not None and classes > MAX_MASK_LABELS:
            raise self._undecided(
                f"{chosen} has {classes} classes, and a mask has at most {MAX_MASK_LABELS}: {_TENSORS}"
            )
        heads = {MASK: (chosen, kind)}
        return Reading("segmentation", heads, classes, axes, notes=notes, others=_without(outputs, chosen))

    def _is_map(self, tensor: Tensor) -> bool:
        """Returns whether a tensor has the shape of a value or scores for each pixel."""
        shape, image = tensor.shape or (), self._image
        if len(shape) == MAP_RANK and self._options.output_axes is not None:
            return True
        if len(shape) == MAP_RANK:
            return any(_sides(tensor, axis) != [1, 1] for axis in fitting_axes(shape, image.height, image.width))
        is_flat = len(shape) == _ANCHORS_RANK or (len(shape) == 2 and not tensor.is_float)  # noqa: PLR2004 - H×W
        sides = [side or 0 for side in shape[-2:]]
        return is_flat and min(sides) >= _MIN_FLAT_SIDE and bool(fit(sides[0], sides[1], image.height, image.width))

    def _is_ids(self, tensor: Tensor) -> bool:
        if self._options.output_kind is not None:
            return self._options.output_kind is OutputKind.CLASS_IDS
        shape = tensor.shape or ()
        is_one = len(shape) < MAP_RANK or 1 in (shape[1], shape[3])
        return is_one and (tensor.operation == "argmax" or not tensor.is_float)

    def _scores(self, tensor: Tensor, notes: list[str]) -> tuple[OutputKind, AxisOrder | None, int]:
        """Returns the kind, the axis order and the number of classes of a map that is not class ids."""
        shape, image, axes = tensor.shape or (), self._image, self._options.output_axes
        channels, order = 1, None
        if len(shape) == MAP_RANK:
            axis = self._axis(tensor)
            order = next(axes for axes, place in CHANNEL_AXES.items() if place == axis)
            channels = shape[axis] or 1
            if axes is None and channels > 1 and len(fitting_axes(shape, image.height, image.width)) > 1:
                notes.append(f"{tensor} may be nhwc or nchw: took {order}, as the labels or the input (--output-axes)")
        if channels > 1:
            return self._options.output_kind or OutputKind.SCORES, order, channels
        kind = self._options.output_kind or self._scale_of(tensor, notes)
        if kind is None:
            raise self._undecided(
                f"{tensor} has one value per pixel, and nothing shows whether it is a probability or a logit: give "
                f"--output-kind probabilities (foreground above 0.5), logits (above 0) or class_ids",
            )
        notes.append(f"one channel is background and foreground: {kind} above {0.5 if kind == 'probabilities' else 0}")
        return kind, order, 2

    def _axis(self, tensor: Tensor) -> int:
        """Returns the axis of the channels of a map with four dimensions."""
        section = OutputSection(tensor=tensor.name, kind=OutputKind.SCORES, axes=self._options.output_axes)
        channels = (1, self._options.labels or 1)
        return channel_axis(tensor.shape or (), section, self._image, planar=self._planar, channels=channels)

    def _scale_of(self, tensor: Tensor, notes: list[str]) -> OutputKind | None:
        """Returns whether an output is logits or probabilities; None if nothing shows it."""
        if tensor.operation in ("sigmoid", "softmax"):
            return OutputKind.PROBABILITIES
        if tensor.quantization is not None and np.isclose(tensor.quantization[0], _UNIT_SCALE, rtol=1e-6):
            return OutputKind.PROBABILITIES
        if tensor.operation == "linear":
            return OutputKind.LOGITS
        values = self._values([tensor])[tensor.name].astype(np.float64)
        lowest, highest = float(np.min(values)), float(np.max(values))
        if lowest < -_ROUNDING:
            notes.append(f"{tensor} is logits, because it gave {lowest:.3g} to {highest:.3g} on noise (--output-kind)")
            return OutputKind.LOGITS
        if values.ndim == 2 and values.shape[1] > 1 and np.allclose(values.sum(axis=1), 1, atol=1e-3):  # noqa: PLR2004
            notes.append(f"{tensor} is probabilities, because their sum is 1 on noise (--output-kind)")
            return OutputKind.PROBABILITIES
        return None

    def _refuse_parts(self, chosen: Tensor, outputs: list[Tensor]) -> None:
        """Refuses scores of pixels that look like a part of another result.

        Raises:
            UndecidedError: the channels are joined from parts, or there are outputs of other sizes.
        """
        shape = chosen.shape or ()
        if chosen.operation == "concatenation" and len(shape) == MAP_RANK:
            raise self._undecided(
                f"{chosen} is joined from several parts, as the boxes and scores of a detector: give --task tensors to serve "
                "it as it is, or --task segmentation if each channel is a class",
            )
        axis = self._axis(chosen) if len(shape) == MAP_RANK else None
        sides = _sides(chosen, axis)
        others = [
            each
            for each in outputs
            if each.is_float
            and each is not chosen
            and (
                _rank(each) == _ANCHORS_RANK != len(shape) or (_rank(each) == MAP_RANK and _sides(each, axis) != sides)
            )
        ]
        if others:
            raise self._undecided(
                f"{chosen} may be the scores of pixels, or belong to {format_tensors(others[:3])}, as in a detector: give "
                "--task segmentation or --task tensors",
            )

    def _selection(self, outputs: list[Tensor]) -> Reading | None:
        """Returns the reading of a detector that contains the suppression.

        Its boxes are N×K×4, 0..1, y before x. The TensorFlow Object Detection API numbers classes from 1, and
        TFLite_Detection_PostProcess from 0.
        """
        operation = [each for each in outputs if each.operation.startswith("tflite_detection_postprocess:")]
        roles = {_SELECTION[int(each.operation.rpartition(":")[2])]: each for each in operation}
        for each in [] if operation else outputs:
            if match := _SELECTION_NAME.search(each.name):
                roles[match[1] or "count"] = each
        if not {"boxes", "classes", "scores"} <= roles.keys():
            self._refuse_slots(outputs)
            return None
        first = 0 if operation else 1
        owner = "TFLite_Detection_PostProcess" if operation else "the TensorFlow Object Detection API"
        return Reading(
            "detection",
            {role: (roles[role], kind) for role, kind in _SELECTION_KINDS.items() if role in roles},
            settings={
                "box_format": BoxFormatSection(order=BoxOrder.YXYX, normalised=True),
                "detection": DetectionSection(first_class=first),
            },
            notes=[
                f"{owner} selected the boxes: y1, x1, y2, x2 from 0 to 1, classes from {first} (detection.first_class)"
            ],
            others=_without(outputs, *roles.values()),
        )

    def _refuse_slots(self, outputs: list[Tensor]) -> None:
        """Refuses boxes with one score and class each, whose order of numbers and class ids nothing shows.

        Raises:
            UndecidedError: there are such outputs.
        """
        shapes = [each.shape or () for each in outputs]
        slots = {
            shape[1] for shape in shapes if len(shape) == _ANCHORS_RANK and shape[2] in range(_CORNERS, _CORNERS + 4)
        }
        has_slots = any(len(shape) == 2 and shape[1] in slots for shape in shapes)  # noqa: PLR2004 - N×K
        without_batch = any(len(shape) == 1 for shape in shapes) and any(
            len(shape) == 2 and shape[1] == _CORNERS  # noqa: PLR2004 - K×4
            for shape in shapes
        )
        if (has_slots or without_batch) and self._options.task != "tensors":
            raise self._undecided(
                f"gives boxes with one score or class each ({format_tensors(outputs[:6])}), and does not show the order of "
                f"their numbers nor of the classes: {_TENSORS}",
            )

    def _detection(self, outputs: list[Tensor]) -> Reading | None:
        """Returns the reading of boxes N×A×4 and scores N×A×C of all anchors."""
        if selected := self._selection(outputs):
            return selected
        anchors = [each for each in outputs if each.is_float and len(each.shape or ()) == _ANCHORS_RANK]
        # The scores of four classes have the shape of boxes, so the name decides.
        anchors.sort(key=lambda each: ("box" not in each.name.lower(), "score" in each.name.lower()))
        for boxes in anchors:
            count, numbers = (boxes.shape or ())[1:]
            scores = [each for each in anchors if each is not boxes and (each.shape or ())[1] == count]
            if numbers != _CORNERS or not scores:
                continue
            notes = [f"{boxes.name} is assumed to be x1, y1, x2, y2 in pixels of the input (box_format)"]
            kind = self._options.output_kind or self._decided_scale(scores[0], notes)
            heads = {"scores": (scores[0], kind), "boxes": (boxes, OutputKind.BOXES)}
            others = _without(outputs, boxes, scores[0])
            return Reading("detection", heads, self._checked_classes(scores[0]), notes=notes, others=others)
        return None

    def _classification(self, outputs: list[Tensor]) -> Reading | None:
        """Returns the reading of scores N×C of an image."""
        self._refuse_slots(outputs)
        fitting = [each for each in outputs if each.is_float and len(each.shape or ()) == 2]  # noqa: PLR2004 - N×C
        if not fitting:
            return None
        named = sorted(fitting, key=lambda each: not any(word in each.name.lower() for word in _OUTPUT_NAMES))
        chosen, notes = named[0], []
        if named[1:]:
            notes.append(f"other outputs are possible: {format_tensors(named[1:4])}; took {chosen}")
        kind = self._options.output_kind or self._decided_scale(chosen, notes)
        heads, others = {"scores": (chosen, kind)}, _without(outputs, chosen)
        return Reading("classification", heads, self._checked_classes(chosen), notes=notes, others=others)

    def _decided_scale(self, tensor: Tensor, notes: list[str]) -> OutputKind:
        kind = self._scale_of(tensor, notes)
        if kind is None:
            raise self._undecided(
                f"nothing shows whether {tensor} is probabilities or logits: give --output-kind probabilities or logits",
            )
        return kind

    def _checked_classes(self, tensor: Tensor) -> int:
        classes = (tensor.shape or ())[-1] or 0
        if classes > MAX_LABELS:
            raise self._undecided(f"{tensor} has {classes} classes, and a model has at most {MAX_LABELS}: {_TENSORS}")
        return classes

    def _check_options(self, reading: Reading) -> None:
        """Raises an UndecidedError for an option that does not fit the task."""
        kind, heads = self._options.output_kind, task_named(reading.task).heads
        fitting = heads[MASK if MASK in heads else "scores"].kinds if heads else (OutputKind.TENSOR,)
        if kind is not None and (kind not in fitting or kind is not reading.kind):
            fits = " or ".join(fitting) if "classes" not in reading.heads else reading.kind
            raise self._undecided(f"--output-kind {kind} does not fit {reading.task}, {reading.output}: give {fits}")
        if self._options.output_axes is not None and reading.axes is None:
            raise self._undecided(f"--output-axes is for scores of pixels, not for {reading.output}: leave it out")


def _without(outputs: Sequence[Tensor], *chosen: Tensor) -> tuple[Tensor, ...]:
    return tuple(each for each in outputs if each not in chosen)


def _rank(tensor: Tensor) -> int:
    return len(tensor.shape or ())


def _sides(tensor: Tensor, axis: int | None) -> list[int | None]:
    """Returns the height and width of a map whose channels are on `axis`."""
    return [side for place, side in enumerate(tensor.shape or ()) if place not in (0, axis)]


def guessed_labels(reading: Reading) -> int | None:
    """Returns the number of classes of a detector that contains the suppression, which does not show it."""
    return _COCO_IDS if "classes" in reading.heads else None
