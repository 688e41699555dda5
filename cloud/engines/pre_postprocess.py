"""What a model needs before and after it on the host, where its file does not do it itself.

TensorFlow's engine puts these steps into its graph (`cloud.engines.tensorflow.graph_heads`, which says the same in operations).
The engines of other formats run a file as it is: scaling before it; arg max, probabilities and boxes in pixels after it.
A file made by `skylane model convert` holds them all, and nothing is left to do here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import EngineError, Images, InferenceError, Placement, Precision
from cloud.models.manifest import BoxOrder, InputSection, Manifest, OutputKind, OutputSection
from shared.errors import suggestion
from shared.messages.model_card import Task
from shared.sanitize import printable

Array = npt.NDArray[Any]
Shape = Sequence[int | None]  # None: left open.

_RGB = 3
_MAP_RANK = 4  # N×H×W×C or N×C×H×W
_BOXES_RANK = 3  # N×A×4, or N×A×C
_CORNERS = 4


@dataclass(frozen=True, slots=True)
class Feed:
    """How pixels become a model's input."""

    section: InputSection
    planar: bool  # N×3×H×W instead of N×H×W×3.
    batch_size: int | None  # Baked into the file; None where any will do.

    def __call__(self, images: Images) -> Array:
        """The model's input from uint8 N×H×W×3: `(pixel * scale - mean) / std` in the model's own type.

        Where the pixels are fed as they are, what comes back is what was given.
        """
        section = self.section
        if self.planar:
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        if section.dtype == "uint8":
            return images
        values = images.astype(section.dtype)
        by_channel = (_RGB, 1, 1) if self.planar else (_RGB,)
        if section.scale != 1.0:
            values *= np.array(section.scale, section.dtype)
        if section.mean:
            values -= np.array(section.mean, section.dtype).reshape(by_channel)
        if section.std:
            values /= np.array(section.std, section.dtype).reshape(by_channel)
        return values


def preprocessor_for(shape: Shape | None, dtype: str | None, manifest: Manifest, path: Path) -> Feed:
    """How to feed an input of this shape and type; of one that tells neither, N×H×W×3 of the manifest's is believed.

    Raises:
        EngineError: it is not what the manifest says.
    """
    section = manifest.input
    if dtype is not None and dtype != section.dtype:
        raise EngineError(path, f"input {section.tensor!r} is {dtype}, the manifest's dtype {section.dtype}")
    if shape is None:
        return Feed(section, planar=False, batch_size=None)
    for planar, sides in (
        (False, (section.height, section.width, _RGB)),
        (True, (_RGB, section.height, section.width)),
    ):
        if _fits(shape, (None, *sides)):
            return Feed(section, planar, shape[0])
    wanted = f"N×{section.height}×{section.width}×3 or N×3×{section.height}×{section.width}"
    raise EngineError(path, f"input {section.tensor!r} is {_told(shape)}, the manifest's {wanted}: correct it")


def named(tensors: Mapping[str, Any], name: str, role: str, path: Path) -> Any:
    """A file's tensor by its name; `role`: "input" or "output".

    Raises:
        EngineError: it has none; the nearest names are offered.
    """
    if name not in tensors:
        raise EngineError(path, f"the model has no {role} {name!r}{suggestion(name, tensors)}")
    return tensors[name]


def check_other_inputs(names: Sequence[str], constants: Sequence[str], path: Path) -> None:
    """Check that a file asks for nothing but the picture and what the manifest's constants give.

    Raises:
        EngineError: it asks for more.
    """
    unfed = sorted(set(names) - set(constants))
    if unfed:
        raise EngineError(path, f"also wants {', '.join(unfed[:5])}: give each a value in input.constants")


def file_precision(manifest: Manifest, placement: Placement, engine: str, path: Path) -> Precision:
    """The precision of the file, which is what an engine that rewrites no numbers computes in.

    Raises:
        EngineError: another one was asked for.
    """
    if placement.precision not in (None, manifest.precision):
        raise EngineError(
            path,
            f"holds {manifest.precision} numbers and {engine} computes in those, not in {placement.precision}: "
            "leave the precision out, or convert the model",
        )
    return manifest.precision


def check_output(head: str, shape: Shape | None, manifest: Manifest, path: Path) -> None:
    """Check that an output of this shape, None where it tells none, is what the manifest says of a head.

    Raises:
        EngineError: it is not.
    """
    if shape is None or manifest.task is Task.TENSORS:
        return
    section = manifest.heads[head]
    labels = len(manifest.labels) or None  # In a file: not known here.
    problem, channels = None, None
    match section.kind:
        case OutputKind.CLASS_IDS:
            fits = len(shape) in (2, 3) or (len(shape) == _MAP_RANK and 1 in (shape[1], shape[3]))
            problem = None if fits else "class ids need N×H×W; for scores set output.kind"
        case OutputKind.SCORES:
            problem = None if len(shape) == _MAP_RANK else "scores need N×H×W×C or N×C×H×W"
            channels = None if problem or labels in (shape[1], shape[3]) else shape[3]
        case OutputKind.BOXES:
            problem = None if _fits(shape, (None, None, _CORNERS)) else "boxes are N×A×4"
        case _:
            rank = 2 if manifest.task is Task.CLASSIFICATION else _BOXES_RANK
            wanted = "the scores of a picture are N×C" if rank == 2 else "the scores of boxes are N×A×C"  # noqa: PLR2004
            problem = None if len(shape) == rank else wanted
            channels = None if problem else shape[-1]
    if problem:
        raise EngineError(path, f"output {section.tensor!r} is {_told(shape)}: {problem}")
    if None not in (channels, labels) and channels != labels:
        raise EngineError(path, f"gives {channels} scores where the manifest has {labels} labels: name all")


def answer(head: str, values: Array, feed: Feed, manifest: Manifest, path: Path) -> Array:
    """What `Engine.infer` gives for a head, from what the model gave.

    Raises:
        InferenceError: it holds NaN, or is of a shape that the manifest does not mean.
    """
    section = manifest.heads[head]
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise InferenceError(f"the model returned NaN in {head!r}")
    try:
        check_output(head, values.shape, manifest, path)
    except EngineError as error:
        raise InferenceError(error.problem) from error
    match manifest.task:
        case Task.SEGMENTATION:
            return _class_ids(values, section, feed, manifest)
        case Task.CLASSIFICATION:
            return _softmax(_floats(values)) if section.kind is OutputKind.LOGITS else _floats(values)
        case Task.DETECTION if section.kind is OutputKind.BOXES:
            return _in_pixels(_floats(values), manifest)
        case Task.DETECTION:
            return _sigmoid(_floats(values)) if section.kind is OutputKind.LOGITS else _floats(values)
    return values


def first_line(error: Exception) -> str:
    """What a library says of an error, without the lines that follow."""
    text = str(error).strip()
    return printable(text.splitlines()[0][:300]) if text else type(error).__name__


def _class_ids(values: Array, section: OutputSection, feed: Feed, manifest: Manifest) -> npt.NDArray[np.uint8]:
    """uint8 N×H×W of the input's size; the lowest class where scores are equal."""
    if section.kind is OutputKind.SCORES:
        labels = len(manifest.labels)
        of_labels = [axis for axis in (1, 3) if values.shape[axis] == labels]
        values = np.argmax(values, of_labels[0] if len(of_labels) == 1 else 1 if feed.planar else 3)
    elif values.ndim == 2:  # noqa: PLR2004 - H×W
        values = values[np.newaxis]
    elif values.ndim == _MAP_RANK:
        values = values[..., 0] if values.shape[3] == 1 else values[:, 0]
    class_ids = values.astype(np.uint8, copy=False)
    height, width = manifest.input.height, manifest.input.width
    if class_ids.shape[1:] != (height, width):
        # A model that answers at a fraction of its input's size: each of its pixels stands for a block.
        rows, columns = (_nearest(*sides) for sides in zip(class_ids.shape[1:], (height, width), strict=True))
        class_ids = class_ids[:, rows][:, :, columns]
    return class_ids


def _nearest(coarse: int, fine: int) -> npt.NDArray[np.intp]:
    """Which of `coarse` pixels lies under the centre of each of `fine` ones."""
    return ((np.arange(fine) + 0.5) * coarse / fine).astype(np.intp)


def _in_pixels(boxes: Array, manifest: Manifest) -> Array:
    """Boxes N×A×4 as x1, y1, x2, y2 in pixels of the input."""
    form = manifest.box_format
    match form.order:
        case BoxOrder.XYXY:
            pixels = boxes
        case BoxOrder.YXYX:
            pixels = boxes[..., [1, 0, 3, 2]]
        case BoxOrder.CXCYWH:
            centres, halves = boxes[..., :2], boxes[..., 2:] / 2
            pixels = np.concatenate([centres - halves, centres + halves], axis=-1)
    if form.normalised:
        width, height = manifest.input.width, manifest.input.height
        pixels = pixels * np.array([width, height, width, height], np.float32)
    return pixels


def _floats(values: Array) -> Array:
    return values.astype(np.float32, copy=False)


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    """Without overflow on either side: tanh is flat where exp would not be."""
    return np.asarray(0.5 * np.tanh(0.5 * logits) + 0.5, np.float32)


def _fits(shape: Shape, wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        None in sides or sides[0] == sides[1] for sides in zip(shape, wanted, strict=True)
    )


def _told(shape: Shape) -> str:
    return "×".join("?" if side is None else str(side) for side in shape) or "a scalar"
