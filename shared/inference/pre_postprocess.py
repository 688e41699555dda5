"""Preprocessing and postprocessing in NumPy, for model files that do not contain these steps.

Before the model: scaling. After it: arg max, probabilities, and boxes in pixels. `cloud.engines.tensorflow.graph_session` and
`cloud.engines.openvino.heads` add the same steps to the graph instead, with the checks and rules of this module. A file
written by `skylane model convert` contains them already.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.imaging.labels import MAX_MASK_LABELS
from shared.inference.engine import EngineError, Images, InferenceError, Outputs
from shared.models.manifest import (
    MASK,
    AxisOrder,
    BoxOrder,
    InputSection,
    Manifest,
    OutputKind,
    OutputSection,
    Placement,
    Precision,
)
from shared.task import CONFIDENCE_HEAD, calibrated_sigmoid, calibrated_softmax, log_probabilities

Shape = Sequence[int | None]  # None stands for a dimension of any size.

MAP_RANK = 4
CHANNEL_AXES = {AxisOrder.NHWC: 3, AxisOrder.NCHW: 1}
_EXACT, _ROUNDED, _NO_FIT = 2, 1, 0  # Degrees to which the sides of a map fit the height and width of the input.


def channel_axis(
    shape: Shape, section: OutputSection, image: InputSection, *, planar: bool, channels: Collection[int]
) -> int:
    """Returns the axis of the channels of a map with four dimensions.

    The manifest decides if it has `axes`. Else the shape does: the other two axes have the aspect ratio of the input. If
    both axes remain, the number of channels decides, and then the axis order of the input.

    Args:
        shape: The shape of the map.
        section: The output in the manifest.
        image: The input in the manifest.
        planar: Whether the input is N×3×H×W.
        channels: The numbers of channels that the manifest allows.
    """
    if section.axes is not None:
        return CHANNEL_AXES[section.axes]
    fitting = fitting_axes(shape, image.height, image.width) or tuple(CHANNEL_AXES.values())
    named = [axis for axis in fitting if shape[axis] in channels]
    if len(named) == 1:
        return named[0]
    own = CHANNEL_AXES[AxisOrder.NCHW if planar else AxisOrder.NHWC]
    return own if own in fitting else fitting[0]


def fitting_axes(shape: Shape, height: int, width: int) -> tuple[int, ...]:
    """Returns the axes, of 1 and 3, without which a map has the aspect ratio of an input of `height` and `width`.

    An exact ratio excludes one that holds only with rounding, as of a network that halves odd sides.
    """
    fits = {axis: fit(shape[rows], shape[rows + 1], height, width) for axis, rows in ((1, 2), (3, 1))}
    best = max(fits.values())
    return tuple(axis for axis, fit in fits.items() if fit == best) if best else ()


def fit(rows: int | None, columns: int | None, height: int, width: int) -> int:
    """Returns how well rows × columns fit the ratio height : width: 2 if they may exactly, 1 with rounding, 0 if not."""
    if rows is None or columns is None or rows * width == columns * height:
        return _EXACT
    # The strides of the two axes may differ by the rounding of a row or a column.
    lowest = max(height / (rows + 1), width / (columns + 1))
    highest = min(height / (rows - 1) if rows > 1 else height, width / (columns - 1) if columns > 1 else width)
    return _ROUNDED if rows and columns and lowest < highest else _NO_FIT


Array = npt.NDArray[Any]

# The kinds of masks whose background is where no channel has a larger value, see `threshold`.
THRESHOLDS = {OutputKind.LOGITS: 0.0, OutputKind.PROBABILITIES: 0.5}
RANGED = ("uint8", "int8", "uint16")  # The integer types that may hold probabilities over their whole range.

_RGB = 3
_LEVELS = 256  # Values of a pixel.
_BOXES_RANK = 3  # N×A×4, or N×A×C
_CORNERS = 4
_BACKGROUND_AND_FOREGROUND = 2  # The labels of a mask with one channel.


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """Converts images to the model's input."""

    section: InputSection
    planar: bool  # The input is N×3×H×W instead of N×H×W×3.
    batch_size: int | None  # Fixed by the file; None if it accepts any.
    levels: Array | None = field(init=False, compare=False)  # See `quantised_levels`.

    def __post_init__(self) -> None:
        """Computes the levels of a quantised input once."""
        object.__setattr__(self, "levels", quantised_levels(self.section))

    def __call__(self, images: Images) -> Array:
        """Returns `(pixel * scale - mean) / std` in the model's dtype, for uint8 images N×H×W×3.

        If there is nothing to convert, the result is `images` itself.
        """
        if self.levels is not None:
            quantised = np.stack([level[images[..., place]] for place, level in enumerate(self.levels)], axis=-1)
            return np.ascontiguousarray(quantised.transpose(0, 3, 1, 2)) if self.planar else quantised
        if self.planar:
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return images if self.section.dtype == "uint8" else self.scaled(images.astype(self.section.dtype))

    def scaled(self, values: Any) -> Any:
        """Returns `(values * scale - mean) / std` of an array, in place, or of a tensor of TensorFlow or OpenVINO."""
        section, by_channel = self.section, (_RGB, 1, 1) if self.planar else (_RGB,)
        if section.scale != 1.0:
            values *= np.array(section.scale, section.dtype)
        if section.mean:
            values -= np.array(section.mean, section.dtype).reshape(by_channel)
        if section.std:
            values /= np.array(section.std, section.dtype).reshape(by_channel)
        return values


def quantised_levels(section: InputSection) -> Array | None:
    """Returns the numbers, 3×256 by channel and pixel value, that are fed to a quantised input.

    None: the input is not quantised, or pixels are fed unchanged.

    A file that maps the whole range of pixels to the whole range of its numbers, give or take a rounding step, takes
    pixels, less 128 for int8.
    """
    quantization = section.quantization
    if quantization is None:
        return None
    pixels = np.tile(np.arange(_LEVELS, dtype=np.float64), (_RGB, 1))
    mean, std = (
        np.reshape(given or (neutral,) * _RGB, (_RGB, 1)) for given, neutral in ((section.mean, 0), (section.std, 1))
    )
    steps = (pixels * section.scale - mean) / std / quantization.scale + quantization.zero_point
    limits = np.iinfo(section.dtype)
    whole_range = pixels + limits.min
    if limits.bits == 8 and np.abs(steps - whole_range).max() <= 1.0 + 1e-6:
        return None if limits.min == 0 else np.asarray(whole_range, section.dtype)
    return np.asarray(np.clip(np.rint(steps), limits.min, limits.max), section.dtype)


def preprocessor_for(shape: Shape | None, dtype: str | None, manifest: Manifest, path: Path) -> Preprocessor:
    """Returns the preprocessor for a file's input tensor.

    Args:
        shape: The shape of the tensor; None if unknown, which assumes N×H×W×3.
        dtype: The dtype of the tensor; None if unknown, which assumes the manifest's.
        manifest: The manifest that describes the input.
        path: The model file, for messages.

    Raises:
        EngineError: the tensor does not match the manifest.
    """
    section = manifest.input
    if dtype is not None and dtype != section.dtype:
        raise EngineError(path, f"input {section.tensor!r} is {dtype}, the manifest's dtype {section.dtype}")
    if shape is None:
        return Preprocessor(section, planar=section.axes is AxisOrder.NCHW, batch_size=None)
    for planar, axes, sides in (
        (False, AxisOrder.NHWC, (section.height, section.width, _RGB)),
        (True, AxisOrder.NCHW, (_RGB, section.height, section.width)),
    ):
        if section.axes in (None, axes) and _fits(shape, (None, *sides)):
            return Preprocessor(section, planar, shape[0])
    expected = f"N×{section.height}×{section.width}×3 or N×3×{section.height}×{section.width}"
    raise EngineError(path, f"input {section.tensor!r} is {_formatted(shape)}, the manifest's {expected}: correct it")


def file_precision(manifest: Manifest, placement: Placement, engine: str, path: Path) -> Precision:
    """Returns the precision of the file, for an engine that cannot convert it.

    Raises:
        EngineError: the placement asks for another precision.
    """
    if placement.precision not in (None, manifest.precision):
        raise EngineError(
            path,
            f"holds {manifest.precision} numbers and {engine} computes in those, not in {placement.precision}: "
            "leave the precision out, or convert the model",
        )
    return manifest.precision


def check_output(head: str, shape: Shape | None, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> None:
    """Checks the shape of a head's output against the manifest; an unknown shape (None) always passes.

    Raises:
        EngineError: the shape does not match.
    """
    section = manifest.heads[head]
    if shape is None or section.kind is OutputKind.TENSOR:
        return
    has_classes = any(each.kind is OutputKind.CLASSES for each in manifest.outputs.values())
    problem, channels = None, None
    match section.kind:
        case OutputKind.CLASS_IDS:
            fits = len(shape) in (2, 3) or (len(shape) == MAP_RANK and 1 in (shape[1], shape[3]))
            problem = None if fits else "class ids need N×H×W; for scores set output.kind"
        case _ if head in (MASK, CONFIDENCE_HEAD):
            problem, channels = _scores_of_pixels(head, shape, preprocessor, manifest)
        case OutputKind.BOXES:
            problem = None if _fits(shape, (None, None, _CORNERS)) else "boxes are N×A×4"
        case OutputKind.CLASSES:
            problem = None if len(shape) == 2 else "the classes of boxes are N×A"
        case OutputKind.COUNT:
            problem = None if len(shape) == 1 or _fits(shape, (None, 1)) else "the number of boxes is N"
        case _ if has_classes:
            problem = None if len(shape) == 2 else "the scores of boxes with classes are N×A"
        case _:
            rank = _BOXES_RANK if manifest.has_boxes else 2
            expected = "the scores of an image are N×C" if rank == 2 else "the scores of boxes are N×A×C"
            problem = None if len(shape) == rank else expected
            channels = None if problem or shape[-1] is None else shape[-1] - bool(manifest.detection.no_object)
    if problem:
        raise EngineError(path, f"output {section.tensor!r} is {_formatted(shape)}: {problem}")
    labels = len(manifest.labels) or None  # Unknown here if the manifest names a labels file.
    if None not in (channels, labels) and channels != labels:
        key = " in confidence, along its axes," if head == CONFIDENCE_HEAD else ""
        raise EngineError(path, f"gives {channels} scores{key} where the manifest has {labels} labels: name all")


def _scores_of_pixels(
    head: str, shape: Shape, preprocessor: Preprocessor, manifest: Manifest
) -> tuple[str | None, int | None]:
    """Returns the problem of scores per pixel, of a mask or for the confidence, and the number of their classes."""
    section = manifest.heads[head]
    has_limit = head == MASK and section.kind in THRESHOLDS
    is_flat = len(shape) == _BOXES_RANK and has_limit
    if len(shape) != MAP_RANK and not is_flat:
        return "scores need N×H×W×C or N×C×H×W", None
    channels = 1 if is_flat else shape[scores_axis(shape, section, preprocessor, manifest)]
    if channels is not None and has_limit and has_background(channels, section, manifest):
        return None, None
    if channels != 1:
        return None, channels
    if not has_limit:
        return "one channel is not one score per class: set output.kind to logits or probabilities", None
    if len(manifest.labels) not in (0, _BACKGROUND_AND_FOREGROUND):
        return f"one channel is background and foreground: name these 2 labels, not {len(manifest.labels)}", None
    return None, None


def _check_numbers(head: str, values: Array, manifest: Manifest) -> None:
    """Checks the values of a head, except of a detector that selects boxes: the places behind them are not initialised.

    Raises:
        InferenceError: a value is NaN.
    """
    selects_boxes = any(each.kind is OutputKind.COUNT for each in manifest.outputs.values())
    if values.dtype.kind == "f" and not selects_boxes and np.isnan(values).any():
        raise InferenceError(f"the model returned NaN in {head!r}")


def postprocess(head: str, values: Array, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Array:
    """Returns the array of a head as `Engine.infer` defines it, from the model's raw output.

    Raises:
        InferenceError: the output contains NaN, or does not match the manifest, or a class id is not in 0..255.
    """
    section = manifest.heads[head]
    _check_numbers(head, values, manifest)
    try:
        check_output(head, values.shape, preprocessor, manifest, path)
    except EngineError as error:
        raise InferenceError(error.problem) from error
    match section.kind:
        case OutputKind.TENSOR:
            return values
        case _ if head == MASK:
            return _class_ids(values, section, preprocessor, manifest)
        case _ if head == CONFIDENCE_HEAD:
            values = np.moveaxis(_floats(values), scores_axis(values.shape, section, preprocessor, manifest), -1)
            return log_probabilities(values) if section.kind is OutputKind.PROBABILITIES else values
        case OutputKind.BOXES:
            with np.errstate(over="ignore", invalid="ignore"):  # Boxes of noise; no such box is in the frame.
                return np.concatenate(box_corners(np.split(_floats(values), _CORNERS, axis=-1), manifest), axis=-1)
        case OutputKind.LOGITS:
            values = (calibrated_sigmoid if has_odds(manifest) else calibrated_softmax)(values, 1.0)
    return _floats(values[..., objects_slice(manifest)] if section.kind in THRESHOLDS else values)


def class_id_heads(manifest: Manifest) -> tuple[str, ...]:
    """Returns the heads whose outputs are class ids."""
    return tuple(head for head, section in manifest.heads.items() if section.kind is OutputKind.CLASS_IDS)


def checked_heads(outputs: dict[str, Array], class_ids: Sequence[str], manifest: Manifest) -> Outputs:
    """Returns the outputs by head of a graph that contains the postprocessing, with those of `class_ids` as uint8.

    Raises:
        InferenceError: an output contains NaN, or a class id is not in 0..255.
    """
    for head, values in outputs.items():
        _check_numbers(head, values, manifest)
    return outputs | {head: _checked_class_ids(outputs[head]) for head in class_ids}


def _checked_class_ids(values: Array) -> npt.NDArray[np.uint8]:
    """Returns class ids of any dtype as uint8; one that is not in 0..255 is an InferenceError, not another class."""
    if values.dtype not in (np.uint8, np.bool_) and values.size:
        lowest, highest = values.min(), values.max()
        if not 0 <= lowest <= highest < MAX_MASK_LABELS:
            raise InferenceError(f"the model returned class ids from {lowest} to {highest}, and a mask holds 0 to 255")
    return values.astype(np.uint8, copy=False)


def scores_axis(shape: Shape, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest) -> int:
    """Returns the axis of the channels in a mask's scores with four dimensions."""
    labels = len(manifest.labels)
    channels = (labels, labels - 1) if section.kind in THRESHOLDS and labels else (labels,)
    return channel_axis(shape, section, manifest.input, planar=preprocessor.planar, channels=channels)


def has_background(channels: int, section: OutputSection, manifest: Manifest) -> bool:
    """Returns whether a mask's first label is where no channel exceeds the threshold; the others are the channels."""
    return section.kind in THRESHOLDS and len(manifest.labels) == channels + 1


def threshold(kind: OutputKind, dtype: Any) -> float:
    """Returns the number above which a value is foreground; in integers, half of the type's range.

    Raises:
        InferenceError: the range of such integers is unknown.
    """
    number = np.dtype(dtype)
    if kind is OutputKind.LOGITS or number.kind not in "iu":
        return THRESHOLDS[kind]
    if number.name not in RANGED:
        raise InferenceError(f"probabilities in {number} have no known range: return {', '.join(RANGED)} or floats")
    return (np.iinfo(number).min + np.iinfo(number).max) // 2


def has_odds(manifest: Manifest) -> bool:
    """Returns whether logits are those of a sigmoid per class, instead of a softmax."""
    return manifest.has_boxes and manifest.detection.no_object is None


def objects_slice(manifest: Manifest) -> slice:
    """Returns the classes of a detector's scores without "no object"; all classes for any other model."""
    return {"first": slice(1, None), "last": slice(0, -1)}.get(manifest.detection.no_object or "", slice(None))


def axis_of_one(shape: Shape) -> int | None:
    """Returns the axis of size 1 in class ids N×H×W×1 or N×1×H×W; None for N×H×W."""
    return None if len(shape) != MAP_RANK else 3 if shape[3] == 1 else 1


def box_corners(numbers: Sequence[Any], manifest: Manifest) -> list[Any]:
    """Returns x1, y1, x2, y2 in pixels of the input; `numbers` are the four of a box, as arrays or tensors N×A×1."""
    a, b, c, d = numbers
    form, two = manifest.box_format, np.array(2, np.float32)
    match form.order:
        case BoxOrder.XYXY:
            corners = [a, b, c, d]
        case BoxOrder.YXYX:
            corners = [b, a, d, c]
        case BoxOrder.CXCYWH:
            corners = [a - c / two, b - d / two, a + c / two, b + d / two]
    if form.normalised:
        width, height = (np.array(side, np.float32) for side in (manifest.input.width, manifest.input.height))
        corners = [corner * side for corner, side in zip(corners, (width, height) * 2, strict=True)]
    return corners


def _class_ids(
    values: Array, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest
) -> npt.NDArray[np.uint8]:
    """Returns uint8 N×H×W class ids of the input's size; the lowest id wins a tie."""
    if section.kind is OutputKind.CLASS_IDS:
        axis = axis_of_one(values.shape)
        if axis is not None:
            values = values.squeeze(axis)
        elif values.ndim == 2:  # H×W
            values = values[np.newaxis]
    else:
        axis = scores_axis(values.shape, section, preprocessor, manifest) if values.ndim == MAP_RANK else None
        if axis is not None and values.shape[axis] > 1:
            best = np.asarray(np.argmax(values, axis)).astype(np.uint8)
            if has_background(values.shape[axis], section, manifest):
                best = (best + np.uint8(1)) * (values.max(axis) > threshold(section.kind, values.dtype))
            values = best
        else:
            values = (values if axis is None else values.squeeze(axis)) > threshold(section.kind, values.dtype)
    class_ids = _checked_class_ids(values)
    height, width = manifest.input.height, manifest.input.width
    if class_ids.shape[1:] != (height, width):
        # The output is smaller than the input: enlarge it by nearest neighbour.
        rows, columns = (_nearest(*sides) for sides in zip(class_ids.shape[1:], (height, width), strict=True))
        class_ids = class_ids[:, rows][:, :, columns]
    return class_ids


def _nearest(coarse: int, fine: int) -> npt.NDArray[np.intp]:
    """Returns for each of `fine` pixels the index of the `coarse` pixel under its centre."""
    return ((np.arange(fine) + 0.5) * coarse / fine).astype(np.intp)


def _floats(values: Array) -> Array:
    return values.astype(np.float32, copy=False)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(
        None in sides or sides[0] == sides[1] for sides in zip(shape, expected, strict=True)
    )


def _formatted(shape: Shape) -> str:
    return "×".join("?" if side is None else str(side) for side in shape) or "a scalar"
