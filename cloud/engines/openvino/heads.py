"""What a model needs before and after it as OpenVINO's operations, for files that do not hold it themselves.

The same steps as those of `cloud.engines.pre_postprocess`, which checks the shapes here too.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.library import ops
from cloud.engines.pre_postprocess import Feed, Shape, check_output
from cloud.models.manifest import BoxOrder, Manifest, OutputKind
from shared.messages.model_card import Task

_MAP_RANK = 4  # N×H×W×C or N×C×H×W


def shape_of(output: Any) -> Shape | None:
    """The sides of a tensor, None for an open one; None where not even their number is known."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return [side.get_length() if side.is_static else None for side in shape]


def fed(images: Any, feed: Feed) -> Any:
    """The model's input from `images`, uint8 N×H×W×3: `(pixel * scale - mean) / std` in the model's own type."""
    section = feed.section
    values = ops.transpose(images, np.array([0, 3, 1, 2])) if feed.planar else images
    if section.dtype == "uint8":
        return values
    dtype = np.dtype(section.dtype)
    values = ops.convert(values, dtype)
    by_channel = (1, 3, 1, 1) if feed.planar else (1, 1, 1, 3)
    if section.scale != 1.0:
        values = ops.multiply(values, np.array(section.scale, dtype))
    if section.mean:
        values = ops.subtract(values, np.array(section.mean, dtype).reshape(by_channel))
    if section.std:
        values = ops.divide(values, np.array(section.std, dtype).reshape(by_channel))
    return values


def head_of(head: str, output: Any, feed: Feed, manifest: Manifest, path: Path) -> Any:
    """The tensor that `Engine.infer` gives for a head, from what the model gives.

    Raises:
        EngineError: it is not what the manifest says.
    """
    shape = shape_of(output)
    check_output(head, shape, manifest, path)
    kind = manifest.heads[head].kind
    match manifest.task:
        case Task.SEGMENTATION:
            return _class_ids(output, shape, kind, feed, manifest)
        case Task.CLASSIFICATION:
            scores = ops.convert(output, np.float32)
            return ops.softmax(scores, -1) if kind is OutputKind.LOGITS else scores
        case Task.DETECTION if kind is OutputKind.BOXES:
            return _in_pixels(ops.convert(output, np.float32), manifest)
        case Task.DETECTION:
            scores = ops.convert(output, np.float32)
            return ops.sigmoid(scores) if kind is OutputKind.LOGITS else scores
    return output


def _class_ids(output: Any, shape: Shape | None, kind: OutputKind, feed: Feed, manifest: Manifest) -> Any:
    """uint8 N×H×W of the input's size; the lowest class where scores are equal."""
    height, width = manifest.input.height, manifest.input.width
    if shape is None:
        return ops.convert(ops.reshape(output, np.array([-1, height, width]), special_zero=False), np.uint8)
    if kind is OutputKind.SCORES:
        of_labels = [axis for axis in (1, 3) if shape[axis] == len(manifest.labels)]
        axis = of_labels[0] if len(of_labels) == 1 else 1 if feed.planar else 3
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
            # A model that answers at a fraction of its input's size: each of its pixels stands for a block.
            nearest = ((np.arange(side) + 0.5) * found / side).astype(np.int64)
            class_ids = ops.gather(class_ids, nearest, np.array(axis))
    return class_ids


def _in_pixels(boxes: Any, manifest: Manifest) -> Any:
    """Boxes N×A×4 as x1, y1, x2, y2 in pixels of the input."""
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
