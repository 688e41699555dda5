"""Preprocessing and postprocessing as OpenVINO operations, for model files that do not contain these steps.

The steps equal those of `cloud.engines.pre_postprocess`, which also checks the shapes here.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.runtime import ops
from cloud.engines.pre_postprocess import Preprocessor, Shape, check_output
from cloud.models.manifest import BoxOrder, Manifest, OutputKind

_MAP_RANK = 4  # N×H×W×C or N×C×H×W


def shape_of(output: Any) -> Shape | None:
    """Returns a tensor's shape, with None for a dynamic dimension; None if the rank is unknown."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return [side.get_length() if side.is_static else None for side in shape]


def preprocess_ops(images: Any, preprocessor: Preprocessor) -> Any:
    """Adds `(pixel * scale - mean) / std` in the model's dtype, for `images`, uint8 N×H×W×3."""
    section = preprocessor.section
    values = ops.transpose(images, np.array([0, 3, 1, 2])) if preprocessor.planar else images
    if section.dtype == "uint8":
        return values
    dtype = np.dtype(section.dtype)
    values = ops.convert(values, dtype)
    by_channel = (1, 3, 1, 1) if preprocessor.planar else (1, 1, 1, 3)
    if section.scale != 1.0:
        values = ops.multiply(values, np.array(section.scale, dtype))
    if section.mean:
        values = ops.subtract(values, np.array(section.mean, dtype).reshape(by_channel))
    if section.std:
        values = ops.divide(values, np.array(section.std, dtype).reshape(by_channel))
    return values


def postprocess_ops(head: str, output: Any, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Any:
    """Adds the operations that turn a model's raw output into the head that `Engine.infer` defines.

    Raises:
        EngineError: the output does not match the manifest.
    """
    shape = shape_of(output)
    check_output(head, shape, manifest, path)
    kind = manifest.heads[head].kind
    match kind:
        case OutputKind.TENSOR:
            return output
        case OutputKind.BOXES:
            return _in_pixels(ops.convert(output, np.float32), manifest)
        case OutputKind.PROBABILITIES:
            return ops.convert(output, np.float32)
        case OutputKind.LOGITS:
            scores = ops.convert(output, np.float32)
            return ops.sigmoid(scores) if manifest.has_boxes else ops.softmax(scores, -1)
    return _class_ids(output, shape, kind, preprocessor, manifest)


def _class_ids(
    output: Any, shape: Shape | None, kind: OutputKind, preprocessor: Preprocessor, manifest: Manifest
) -> Any:
    """Adds uint8 N×H×W class ids of the input's size; the lowest id wins a tie."""
    height, width = manifest.input.height, manifest.input.width
    if shape is None:
        return ops.convert(ops.reshape(output, np.array([-1, height, width]), special_zero=False), np.uint8)
    if kind is OutputKind.SCORES:
        label_axes = [axis for axis in (1, 3) if shape[axis] == len(manifest.labels)]
        axis = label_axes[0] if len(label_axes) == 1 else 1 if preprocessor.planar else 3
        best = ops.topk(output, np.array(1), axis, "max", "value", "i32", stable=True)
        class_ids = ops.squeeze(best.output(1), np.array([axis]))
        shape = [side for place, side in enumerate(shape) if place != axis]
    elif len(shape) == 2:  # noqa: PLR2004 - H×W
        class_ids = ops.unsqueeze(output, np.array([0]))
        shape = [1, *shape]
    elif len(shape) == _MAP_RANK:
        axis = 3 if shape[3] == 1 else 1
        class_ids = ops.squeeze(output, np.array([axis]))
        shape = [side for place, side in enumerate(shape) if place != axis]
    else:
        class_ids = output
    class_ids = ops.convert(class_ids, np.uint8)
    for axis, side in ((1, height), (2, width)):
        found = shape[axis]
        if found not in (None, side):
            # The output is smaller than the input: enlarge it by nearest neighbour.
            nearest = ((np.arange(side) + 0.5) * found / side).astype(np.int64)
            class_ids = ops.gather(class_ids, nearest, np.array(axis))
    return class_ids


def _in_pixels(boxes: Any, manifest: Manifest) -> Any:
    """Converts boxes N×A×4 to x1, y1, x2, y2 in pixels of the input."""
    form = manifest.box_format
    last = np.array(-1)
    match form.order:
        case BoxOrder.XYXY:
            pixels = boxes
        case BoxOrder.YXYX:
            pixels = ops.gather(boxes, np.array([1, 0, 3, 2]), last)
        case BoxOrder.CXCYWH:
            parts = ops.split(boxes, last, 2)
            halves = ops.multiply(parts.output(1), np.array(0.5, np.float32))
            pixels = ops.concat([ops.subtract(parts.output(0), halves), ops.add(parts.output(0), halves)], -1)
    if form.normalised:
        width, height = manifest.input.width, manifest.input.height
        pixels = ops.multiply(pixels, np.array([width, height, width, height], np.float32))
    return pixels
