"""The rule, the same for all formats, by which the outputs of a third-party model get a task and a meaning.

The shapes, the last operations of the graph and a run on noise decide. Where several readings remain, the error names the
option that decides.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.inspection.model_tensors import BYTE_RANGE, Tensor, format_tensors
from shared.config import Section
from shared.errors import suggestion
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_LABELS, MAX_MASK_LABELS
from shared.inference.engine import EngineError
from shared.inference.pre_postprocess import (
    CHANNEL_AXES,
    MAP_RANK,
    RANGED,
    THRESHOLDS,
    channel_axis,
    fit,
    fitting_axes,
)
from shared.messages.tensors import DTYPES, MAX_TENSORS
from shared.models.manifest import (
    MASK,
    AxisOrder,
    BoxFormatSection,
    BoxOrder,
    DetectionSection,
    InputSection,
    NoObject,
    OutputKind,
    OutputSection,
)
from shared.task import task_named

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
_RGB, _CORNERS = 3, 4
_SCORES_RANK, _ANCHORS_RANK = 2, 3  # N×C; N×A×4 or N×A×C.
_MIN_FLAT_SIDE = 8  # Rows and columns of a map N×H×W; smaller ones are not a map.
_UNIT_SCALE = 1 / 256  # TensorFlow Lite's scale of a quantised sigmoid or softmax.
_MAX_RELATIVE = 2.0  # Boxes of noise in pixels have larger numbers.
_MAX_REVERSED = 0.25  # Share of boxes of noise that may contradict the order of their numbers.
_OVERHANG = 0.05  # Part of the image by which a box may reach over its edge.
_MANY_LEVELS = 128  # Noise gives fewer class ids than that.
# Operations whose results are levels rather than class ids.
_LEVELS = ("mul", "multiply", "div", "realdiv", "divide", "clip", "clipbyvalue", "minimum", "round", "floor")
_ROUNDING = 1e-4
# Operations whose results are integers only if they are quantised.
_REAL_NUMBERS = ("sigmoid", "softmax", "linear", "real numbers")
_TENSORS = "--task tensors serves the outputs as they are"


class UndecidedError(EngineError):
    """The file allows several readings, or none; the message names the option that decides."""


class Options(Section):
    """The user's statements about a model; None: the model decides."""

    task: str | None = None
    output_kind: OutputKind | None = None
    output_axes: AxisOrder | None = None
    axes: AxisOrder | None = None
    layout: Layout | None = None
    resize: Resize | None = None
    box_order: BoxOrder | None = None
    no_object: NoObject | None = None
    confidence: str | None = None  # The name of the output with the scores per class.
    output: str | None = None  # The name of the main output.
    normalize: str | None = None  # A key of NORMALIZATIONS.
    labels: int | None = None  # The number of labels.
    starts_with_background: bool = False  # True if the first label is the background.


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of a model's outputs."""

    task: str
    heads: Mapping[str, tuple[Tensor, OutputKind]]  # Keys are the manifest's heads; the first head is the main one.
    classes: int | None = None  # None if unknown.
    axes: AxisOrder | None = None  # Axis order of a segmentation's scores.
    has_background: bool = False  # The first class of a segmentation is where no channel is above a limit.
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

        `inner` returns tensors inside the graph that may be class ids, if no output has a meaning.

        Raises:
            UndecidedError: several readings are possible, or none.
            EngineError: the model fails on noise.
        """
        known, task, name = self._usable(outputs), self._options.task, self._options.output
        if name is not None and name not in (names := [each.name for each in known]):
            known = [each for each in self._usable(inner()) if each.name == name]
            if not known:
                raise self._undecided(f"has no usable output {name!r}{suggestion(name, names)}")
        readers: dict[str, Callable[[list[Tensor]], Reading | None]] = {
            "selection": self._selection,
            "segmentation": self._segmentation,
            "detection": self._detection,
            "classification": self._classification,
            "tensors": self._tensors,
        }
        tasks = [task] if task else list(readers)[:-1]
        tasks = ["selection", *tasks] if task == "detection" else tasks
        reading = next(filter(None, (readers[each](known) for each in tasks)), None)
        if reading is None and task in (None, "segmentation"):
            reading = self._segmentation(self._usable(inner()))
        if reading is None:
            remedy = f"; {_TENSORS}, --output-axes takes maps of another aspect ratio"
            raise self._undecided(
                "gives no class ids (N×H×W) or scores (N×C×H×W) of pixels, no scores of an image (N×C, C > 1), and no boxes "
                f"(N×A×4) with scores (N×A×C){f' for task {task}' if task else ''}: its outputs are "
                f"{format_tensors(outputs[:8])}{remedy if known else ', none of them numbers with the batch first'}"
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
        filled = [each for each in known if each.shape and 0 not in each.shape]
        return [each for each in filled if each.sides[0] in (None, self._batch) or self._is_map(each, rank=2)]

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
        def rank(tensor: Tensor) -> tuple[bool, ...]:
            is_stated = tensor.name == self._options.output
            return is_stated, self._is_ids(tensor), _is_named(tensor), tensor.operation == "argmax"

        ranked = sorted(filter(self._is_map, outputs), key=rank, reverse=True)
        if not ranked:
            return None
        chosen, notes = ranked[0], self._choice(ranked)
        columns, width = _pixels(chosen, self._axis(chosen))[-1] or 0, self._image.width
        if self._options.task is None and width / 2 + 1 < columns < width:
            raise self._undecided(
                f"{chosen} is smaller than the input by no whole number, as of a network that crops the image: give --task "
                "segmentation if it shows the whole image, else --task tensors"
            )
        if self._is_ids(chosen) and not self._is_levels(chosen):
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
        heads, others = {MASK: (chosen, kind)}, _without(outputs, {MASK: (chosen, kind)})
        has_background = kind in THRESHOLDS and (axes is None or chosen.sides[CHANNEL_AXES[axes]] != classes)
        return Reading("segmentation", heads, classes, axes, has_background, notes=notes, others=others)

    def _choice(self, ranked: Sequence[Tensor]) -> list[str]:
        """Returns a note if the first tensor was chosen of several; refuses to choose one of equal ones."""
        chosen, others = ranked[0], format_tensors(ranked[1:4])
        shown = [(_is_named(each), each.sides, each.dtype, each.operation) for each in ranked[:MAX_TENSORS]]
        alike = [each for each, text in zip(ranked, shown, strict=False) if text == shown[0]]
        is_stated = chosen.name == self._options.output
        values = [] if is_stated or not alike[1:] else list(self._values(alike).values())
        if any(not np.array_equal(each, values[0], equal_nan=True) for each in values):
            raise self._undecided(f"gives {chosen}, {others}, and nothing shows which one is meant: give --output NAME")
        return [f"other outputs are possible: {others}; took {chosen} (--output)"] if ranked[1:] else []

    def _is_map(self, tensor: Tensor, rank: int | None = None) -> bool:
        """Returns whether a tensor, of this rank, has the shape of a value or scores for each pixel."""
        sides, size = tensor.sides, (self._image.height, self._image.width)
        if rank not in (None, len(sides)):
            return False
        if len(sides) == MAP_RANK:
            fitting = fitting_axes(sides, *size)
            return self._options.output_axes is not None or any(_pixels(tensor, axis) != [1, 1] for axis in fitting)
        is_flat = len(sides) == _ANCHORS_RANK or (len(sides) == _SCORES_RANK and not tensor.is_float)  # N×H×W or H×W
        rows, columns = (0, 0, *(side or 0 for side in sides))[-2:]
        return is_flat and min(rows, columns) >= _MIN_FLAT_SIDE and bool(fit(rows, columns, *size))

    def _is_ids(self, tensor: Tensor) -> bool:
        if self._options.output_kind is not None:
            return self._options.output_kind is OutputKind.CLASS_IDS
        is_one = len(tensor.sides) < MAP_RANK or 1 in (tensor.sides[1], tensor.sides[3])
        is_whole = not tensor.is_float and tensor.operation not in _REAL_NUMBERS
        return is_one and (tensor.operation == "argmax" or is_whole)

    def _scores(self, tensor: Tensor, notes: list[str]) -> tuple[OutputKind, AxisOrder | None, int]:
        """Returns the kind, the axis order and the number of classes of a map that is not class ids."""
        axis, image = self._axis(tensor), self._image
        order = next((order for order, place in CHANNEL_AXES.items() if place == axis), None)
        channels = 1 if axis is None else tensor.sides[axis] or 1
        if channels == _RGB:
            notes.append(f"{tensor} may be an image instead of scores of 3 classes: then {_TENSORS}")
        kind = self._options.output_kind
        has_background = channels == 1 or self._has_background(tensor, channels)
        if not has_background:
            fitting = fitting_axes(tensor.sides, image.height, image.width)
            if self._options.output_axes is None and len(fitting) > 1:
                notes.append(f"{tensor} may be nhwc or nchw: took {order}, as the labels or the input (--output-axes)")
            return kind or OutputKind.SCORES, order, channels
        is_sure = channels > 1 or self._is_levels(tensor)
        kind = kind or (OutputKind.PROBABILITIES if is_sure else self._scale_of(tensor, notes))
        if kind in THRESHOLDS:
            limit = f"{kind} above {self._limit(tensor, kind)}"
            each = f"{channels} labels have one channel each: a pixel without {limit} in any is background"
            several = f"{each}; --output-kind scores takes the highest instead"
            notes.append(several if channels > 1 else f"one channel is background and foreground: {limit}")
        return kind, order, channels + 1

    def _has_background(self, tensor: Tensor, channels: int) -> bool:
        """Returns whether several channels are independent labels, beside a background that has no channel."""
        kind, labels = self._options.output_kind, self._options.labels
        if kind not in (None, OutputKind.PROBABILITIES):
            return kind is OutputKind.LOGITS and labels == channels + 1
        if labels == channels and self._options.starts_with_background:
            return False
        if tensor.operation:
            return tensor.operation == "sigmoid"
        values = self._values([tensor])[tensor.name].astype(np.float64)
        is_shared = np.allclose(values.sum(axis=self._axis(tensor)), 1, atol=1e-3)
        return not is_shared and values.min() >= 0 and values.max() <= 1

    def _is_levels(self, tensor: Tensor) -> bool:
        """Returns whether integers are a mask over the range of their type, such as 0 to 255, instead of class ids."""
        is_known = self._options.output_kind is not None or tensor.operation in ("argmax", *_REAL_NUMBERS)
        if is_known or tensor.is_float or tensor.dtype == "bool":
            return False
        values, limit = self._values([tensor])[tensor.name], min(np.iinfo(tensor.dtype).max, np.iinfo(np.uint16).max)
        is_computed, found = tensor.operation in _LEVELS and values.max() > 1, np.unique(values)
        is_mixed = values.max() == limit and 2 < len(found) <= _MANY_LEVELS  # 255 may be "ignore".
        if (is_computed and values.max() <= limit / 2) or (is_mixed and not is_computed):
            raise self._undecided(
                f"{tensor} gave 0 to {values.max()} on noise, as class ids or a mask over the range of {tensor.dtype}: "
                "give --output-kind class_ids or probabilities"
            )
        return bool(is_computed or values.max() == limit or len(found) > _MANY_LEVELS)

    def _limit(self, tensor: Tensor, kind: OutputKind) -> str:
        """Returns the limit of the background as text; refuses numbers of which it is unknown."""
        values, is_integer = self._values([tensor])[tensor.name], not tensor.dtype.startswith("float")
        is_ranged = tensor.dtype in RANGED and (tensor.dtype != "int8" or tensor.is_float or values.min() < 0)
        is_unit = tensor.is_float and values.max() <= BYTE_RANGE
        if (is_unit or is_ranged) if kind is OutputKind.PROBABILITIES else (tensor.is_float or values.min() < 0):
            return f"half of the range of {tensor.dtype}" if is_integer and not is_unit else f"{THRESHOLDS[kind]:g}"
        raise self._undecided(
            f"{tensor} gave {values.min():g} to {values.max():g} on noise, and probabilities are 0 to 1 or over the whole "
            f"range of {', '.join(RANGED)}: convert them in the network; {_TENSORS}"
        )

    def _axis(self, tensor: Tensor) -> int | None:
        """Returns the axis of the channels of a map; None for one without."""
        if len(tensor.sides) != MAP_RANK:
            return None
        section = OutputSection(tensor=tensor.name, kind=OutputKind.SCORES, axes=self._options.output_axes)
        channels = (1, self._options.labels or 1)
        return channel_axis(tensor.sides, section, self._image, planar=self._planar, channels=channels)

    def _scale_of(self, tensor: Tensor, notes: list[str]) -> OutputKind:
        """Returns whether an output is logits or probabilities."""
        if not tensor.is_float:
            raise self._undecided(f"{tensor} is quantised, and the file does not show its scale: {_TENSORS}")
        step = tensor.quantization[0] if tensor.quantization else 0.0
        if tensor.operation in ("sigmoid", "softmax") or np.isclose(step, _UNIT_SCALE, rtol=1e-6):
            return OutputKind.PROBABILITIES
        if tensor.operation == "linear":
            return OutputKind.LOGITS
        values = self._values([tensor])[tensor.name].astype(np.float64)
        if values.min() < -_ROUNDING:
            notes.append(f"{tensor} is logits, because it gave {values.min():.3g} on noise (--output-kind)")
            return OutputKind.LOGITS
        if values.ndim == _SCORES_RANK and values.shape[1] > 1 and np.allclose(values.sum(axis=1), 1, atol=1e-3):
            notes.append(f"{tensor} is probabilities, because their sum is 1 on noise (--output-kind)")
            return OutputKind.PROBABILITIES
        raise self._undecided(
            f"nothing shows whether {tensor} is probabilities or logits: give --output-kind probabilities (foreground of a "
            "mask above 0.5) or logits (above 0), or for integers class_ids"
        )

    def _refuse_parts(self, chosen: Tensor, outputs: list[Tensor]) -> None:
        """Refuses scores of pixels whose channels are joined from parts, or beside outputs of other sizes."""
        axis = self._axis(chosen)
        if chosen.operation == "concatenation" and axis is not None:
            raise self._undecided(
                f"{chosen} is joined from several parts, as the boxes and scores of a detector: give --task tensors to serve "
                "it as it is, or --task segmentation if each channel is a class"
            )
        others = [
            each
            for each in outputs
            if each.is_float
            and (len(each.sides) == _ANCHORS_RANK < len(chosen.sides) or len(each.sides) == MAP_RANK)
            and _pixels(each, axis) != _pixels(chosen, axis)
        ]
        if others:
            raise self._undecided(
                f"{chosen} may be the scores of pixels, or belong to {format_tensors(others[:3])}, as in a detector: give "
                "--task segmentation or --task tensors"
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
        heads = {role: (roles[role], kind) for role, kind in _SELECTION_KINDS.items() if role in roles}
        notes = [
            f"{owner} selected the boxes: y1, x1, y2, x2 from 0 to 1, classes from {first} (detection.first_class)"
        ]
        settings = {
            "box_format": BoxFormatSection(order=BoxOrder.YXYX, normalised=True),
            "detection": DetectionSection(first_class=first),
        }
        return Reading("detection", heads, settings=settings, notes=notes, others=_without(outputs, heads))

    def _refuse_slots(self, outputs: list[Tensor]) -> None:
        """Refuses boxes with one score or class each, because nothing shows their order of numbers and class ids."""
        boxes = (each.sides for each in outputs if len(each.sides) == _ANCHORS_RANK)
        slots = {count for _, count, numbers in boxes if numbers in range(_CORNERS, _CORNERS + 4)}
        if any(len(each.sides) == _SCORES_RANK and each.sides[1] in slots for each in outputs):
            raise self._undecided(
                f"gives boxes with one score or class each ({format_tensors(outputs[:6])}), and does not show the order of "
                f"their numbers nor of the classes: {_TENSORS}"
            )

    def _detection(self, outputs: list[Tensor]) -> Reading | None:
        """Returns the reading of boxes N×A×4 and scores N×A×C of all anchors."""
        anchors = [each for each in outputs if each.is_float and len(each.sides) == _ANCHORS_RANK]
        # The scores of four classes have the shape of boxes, so the name decides.
        anchors.sort(key=lambda each: ("box" not in each.name.lower(), "score" in each.name.lower()))
        for boxes in anchors:
            scores = [each for each in anchors if each is not boxes and each.sides[1] == boxes.sides[1]]
            if boxes.sides[2] == _CORNERS and scores:
                numbers = self._values([boxes])[boxes.name]
                is_relative = bool(np.abs(numbers).max() <= _MAX_RELATIVE)
                order = self._options.box_order or self._box_order(boxes, numbers, is_relative=is_relative)
                unit = "from 0 to 1, as on noise," if is_relative else "in pixels of the input"
                notes = [f"{boxes.name} is assumed to be {order} {unit} (--box-order, box_format)"]
                form = BoxFormatSection(order=order, normalised=is_relative)
                reading = self._scored("detection", scores[0], outputs, notes, {"boxes": (boxes, OutputKind.BOXES)})
                return self._without_no_object(replace(reading, settings={"box_format": form}), order)
        return None

    def _box_order(self, boxes: Tensor, numbers: npt.NDArray[Any], *, is_relative: bool) -> BoxOrder:
        """Returns xyxy if the boxes of noise can be nothing else but corners, else asks."""
        size = 1.0 if is_relative else np.array([self._image.width, self._image.height])
        start, end = numbers[..., :2] / size, numbers[..., 2:] / size
        is_reversed = (end < start).any(axis=-1)
        low, high = start - end / 2, start + end / 2
        is_centred = ((low >= -_OVERHANG) & (high <= 1 + _OVERHANG) & (end > 0)).all(axis=-1)
        if is_reversed.mean() <= _MAX_REVERSED and is_centred.mean() < 1 - _MAX_REVERSED:
            return BoxOrder.XYXY
        seen = "on noise, x2 < x1 or y2 < y1" if is_reversed.mean() > _MAX_REVERSED else "centre and size fit as well"
        raise self._undecided(
            f"{boxes} does not show that it is x1, y1, x2, y2: {seen}; give --box-order xyxy, yxyx or cxcywh "
            f"(centre and size, as of DETR); {_TENSORS}"
        )

    def _without_no_object(self, reading: Reading, order: BoxOrder) -> Reading:
        """Returns the reading without the class "no object", if the user states it or the labels have no name for it."""
        classes, place = reading.classes or 0, self._options.no_object
        is_centred = order is BoxOrder.CXCYWH
        if place is None and is_centred and self._options.labels == classes - 1:
            place = "last"
        if place is None:
            ask = f'{classes} classes are scored: if one is "no object", as of DETR, give --no-object first or last'
            return replace(reading, notes=[*reading.notes, *([ask] if is_centred else [])])
        note = f'the {place} of {classes} classes is "no object", part of a softmax (--no-object)'
        settings = {**reading.settings, "detection": DetectionSection(no_object=place)}
        return replace(reading, classes=classes - 1, notes=[*reading.notes, note], settings=settings)

    def _classification(self, outputs: list[Tensor]) -> Reading | None:
        """Returns the reading of scores N×C of an image."""
        self._refuse_slots(outputs)
        fitting = [each for each in outputs if each.is_float and len(each.sides) == _SCORES_RANK and each.sides[1] != 1]
        fitting.sort(key=lambda each: (each.name == self._options.output, _is_named(each)), reverse=True)
        return self._scored("classification", fitting[0], outputs, self._choice(fitting)) if fitting else None

    def _scored(
        self,
        task: str,
        scores: Tensor,
        outputs: list[Tensor],
        notes: list[str],
        others: Mapping[str, tuple[Tensor, OutputKind]] = MappingProxyType({}),
    ) -> Reading:
        """Returns the reading of scores of classes in the last dimension, beside other heads."""
        classes = scores.sides[-1] or 0
        if classes > MAX_LABELS:
            raise self._undecided(f"{scores} has {classes} classes, and a model has at most {MAX_LABELS}: {_TENSORS}")
        heads = {"scores": (scores, self._options.output_kind or self._scale_of(scores, notes)), **others}
        return Reading(task, heads, classes, notes=notes, others=_without(outputs, heads))

    def _check_options(self, reading: Reading) -> None:
        """Raises an UndecidedError for an option that does not fit the task."""
        kind, heads = self._options.output_kind, task_named(reading.task).heads
        fitting = heads[MASK if MASK in heads else "scores"].kinds if heads else (OutputKind.TENSOR,)
        if kind is not None and (kind not in fitting or kind is not reading.kind):
            fits = " or ".join(fitting) if "classes" not in reading.heads else reading.kind
            raise self._undecided(f"--output-kind {kind} does not fit {reading.task}, {reading.output}: give {fits}")
        if self._options.output_axes is not None and reading.axes is None:
            raise self._undecided(f"--output-axes is for scores of pixels, not for {reading.output}: leave it out")
        is_scored = "boxes" in heads and "classes" not in reading.heads
        for option, is_known in (("box_order", is_scored), ("no_object", is_scored), ("confidence", MASK in heads)):
            if getattr(self._options, option) is not None and not is_known:
                raise self._undecided(f"--{option.replace('_', '-')} is not for {reading.output}: leave it out")


def _without(outputs: Sequence[Tensor], heads: Mapping[str, tuple[Tensor, OutputKind]]) -> tuple[Tensor, ...]:
    chosen = [tensor for tensor, _ in heads.values()]
    return tuple(each for each in outputs if each not in chosen)


def _is_named(tensor: Tensor) -> bool:
    return tensor.name == "out" or any(word in tensor.name.lower() for word in _OUTPUT_NAMES)


def _pixels(tensor: Tensor, axis: int | None) -> list[int | None]:
    """Returns the height and width of a map whose channels are on `axis`."""
    return [side for place, side in enumerate(tensor.sides) if place not in (0, axis)]
