"""Preprocessing and postprocessing as OpenVINO operations, for model files that do not contain these steps.

The steps equal those of `shared.inference.pre_postprocess`, which also checks the shapes here.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.runtime import ops
from shared.inference.engine import EngineError
from shared.inference.pre_postprocess import (
    MAP_RANK,
    THRESHOLDS,
    Preprocessor,
    Shape,
    axis_of_one,
    box_corners,
    check_output,
    has_background,
    has_odds,
    objects_slice,
    scores_axis,
    threshold,
)
from shared.models.manifest import MASK, Manifest, OutputKind, OutputSection
from shared.task import CONFIDENCE_HEAD, SMALLEST

_QUANTISED_DTYPES = ("int8", "uint8", "int16")
_ORDERS = (OutputKind.CLASS_IDS, OutputKind.SCORES)  # The kinds for which the scale of the numbers does not matter.


def shape_of(output: Any) -> Shape | None:
    """Returns a tensor's shape, with None for a dynamic dimension; None if the rank is unknown."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return [side.get_length() if side.is_static else None for side in shape]


def preprocess_ops(images: Any, preprocessor: Preprocessor) -> Any:
    """Adds the operations that convert `images`, uint8 N×H×W×3, to the model's input, as `Preprocessor` does.

    The result is `(pixel * scale - mean) / std`, pixels unchanged or levels, and N×3×H×W for a planar input.
    """
    if preprocessor.levels is not None:
        channels, count = preprocessor.levels.shape
        places = ops.add(ops.convert(images, np.int32), np.arange(channels, dtype=np.int32) * count)
        images = ops.gather(ops.constant(preprocessor.levels.reshape(-1)), places, np.array(0))
    values = ops.transpose(images, np.array([0, 3, 1, 2])) if preprocessor.planar else images
    dtype = preprocessor.section.dtype
    if preprocessor.levels is not None or dtype == "uint8":
        return values
    return preprocessor.scaled(ops.convert(values, np.dtype(dtype)))


def postprocess_ops(head: str, output: Any, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Any:
    """Adds the operations that turn a model's raw output into the head that `Engine.infer` defines.

    Raises:
        EngineError: the output does not match the manifest.
    """
    shape, section = shape_of(output), manifest.heads[head]
    check_output(head, shape, preprocessor, manifest, path)
    dtype = output.get_element_type().to_dtype().name
    if manifest.format == "tflite" and dtype in _QUANTISED_DTYPES and section.kind not in _ORDERS:
        raise EngineError(
            path, f"OpenVINO does not show the quantisation of output {section.tensor!r}, {dtype}: use engine tflite"
        )
    match section.kind:
        case OutputKind.TENSOR:
            return output
        case _ if head == MASK:
            return _class_ids(output, shape, section, preprocessor, manifest)
        case _ if head == CONFIDENCE_HEAD:
            return _confidence(output, section, preprocessor, manifest, path)
        case OutputKind.BOXES:
            boxes = ops.convert(output, np.float32)
            numbers = [ops.gather(boxes, np.array([index]), np.array(-1)) for index in range(4)]
            return ops.concat(box_corners(numbers, manifest), -1)
        case OutputKind.LOGITS:
            scores = ops.convert(output, np.float32)
            output = ops.sigmoid(scores) if has_odds(manifest) else ops.softmax(scores, -1)
    output, objects = ops.convert(output, np.float32), objects_slice(manifest)
    if section.kind not in THRESHOLDS or objects == slice(None):
        return output
    start, stop = (np.array([end]) for end in (objects.start, objects.stop or np.iinfo(np.int64).max))
    return ops.slice(output, start, stop, np.array([1]), np.array([-1]))


def _confidence(output: Any, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Any:
    """Adds N×h×w×C scores before softmax."""
    shape = shape_of(output)
    if shape is None:
        raise EngineError(path, f"output {section.tensor!r} has no known shape: a confidence needs one")
    scores = ops.convert(output, np.float32)
    if scores_axis(shape, section, preprocessor, manifest) == 1:
        scores = ops.transpose(scores, np.array([0, 2, 3, 1]))
    if section.kind is not OutputKind.PROBABILITIES:
        return scores
    return ops.log(ops.maximum(scores, np.array(SMALLEST, np.float32)))


def _class_ids(
    output: Any, shape: Shape | None, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest
) -> Any:
    """Adds N×H×W class ids of the input's size, int32 if the model's own may exceed uint8; the lowest id wins a tie."""
    height, width = manifest.input.height, manifest.input.width
    is_ids = section.kind is OutputKind.CLASS_IDS
    is_checked = is_ids and output.get_element_type().to_dtype() not in (np.uint8, np.bool_)
    dtype = np.int32 if is_checked else np.uint8  # The engine checks an int32.
    if shape is None:
        return ops.convert(ops.reshape(output, np.array([-1, height, width]), special_zero=False), dtype)
    axis = axis_of_one(shape)
    if not is_ids:
        axis = scores_axis(shape, section, preprocessor, manifest) if len(shape) == MAP_RANK else None
        if axis is not None and shape[axis] != 1:
            best = ops.topk(output, np.array(1), axis, "max", "value", "i32", stable=True)
            output = best.output(1)
            if has_background(shape[axis] or 0, section, manifest):
                one, zero = (np.array(number, np.int32) for number in (1, 0))
                above = ops.greater(best.output(0), _threshold(best.output(0), section))
                output = ops.select(above, ops.add(output, one), zero)
        else:
            output = ops.greater(output, _threshold(output, section))
    if axis is not None:
        output = ops.squeeze(output, np.array([axis]))
        shape = [side for place, side in enumerate(shape) if place != axis]
    elif len(shape) == 2:  # H×W
        output, shape = ops.unsqueeze(output, np.array([0])), [1, *shape]
    class_ids = ops.convert(output, dtype)
    for place, side in ((1, height), (2, width)):
        found = shape[place]
        if found not in (None, side):
            # The output is smaller than the input: enlarge it by nearest neighbour.
            nearest = ((np.arange(side) + 0.5) * found / side).astype(np.int64)
            class_ids = ops.gather(class_ids, nearest, np.array(place))
    return class_ids


def _threshold(output: Any, section: OutputSection) -> Any:
    dtype = output.get_element_type().to_dtype()
    return np.array(threshold(section.kind, dtype), dtype)
