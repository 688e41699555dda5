"""Postprocessing as TensorFlow operations: arg max, probabilities, and boxes in pixels."""

from pathlib import Path
from typing import Any

from cloud.engines.errors import EngineError
from cloud.engines.tensorflow.runtime import tf
from cloud.models.manifest import BoxOrder, Manifest, OutputKind, OutputSection
from shared.messages.tensors import DTYPES

_IMAGE_RANK = 4  # N×H×W×C
_BOXES_RANK = 3  # N×A×4, or N×A×C


def postprocess_ops(head: str, output: Any, images: Any, manifest: Manifest, path: Path) -> Any:
    """Adds the operations that turn a model's raw output into the head that `Engine.infer` defines.

    `images` is the end-to-end graph's input, uint8 N×H×W×3.

    Raises:
        EngineError: the output does not match the manifest.
    """
    section = manifest.heads[head]
    match section.kind:
        case OutputKind.CLASS_IDS | OutputKind.SCORES:
            return _class_ids(output, section, images, manifest, path)
        case OutputKind.BOXES:
            _check_rank(output, section, _BOXES_RANK, "boxes are N×A×4", path)
            return _in_pixels(tf.cast(output, tf.float32), manifest)
        case OutputKind.LOGITS | OutputKind.PROBABILITIES if manifest.has_boxes:
            _check_rank(output, section, _BOXES_RANK, "the scores of boxes are N×A×C", path)
            _check_channels(output, manifest, path)
            return _probabilities(output, section, tf.nn.sigmoid)
        case OutputKind.LOGITS | OutputKind.PROBABILITIES:
            _check_rank(output, section, 2, "the scores of an image are N×C", path)
            _check_channels(output, manifest, path)
            return _probabilities(output, section, tf.nn.softmax)
    if output.dtype.name not in DTYPES:
        problem = f"output {section.tensor!r} is {output.dtype.name}: only numbers can be sent ({', '.join(DTYPES)})"
        raise EngineError(path, problem)
    return output


def _probabilities(output: Any, section: OutputSection, activation: Any) -> Any:
    scores = tf.cast(output, tf.float32)
    return activation(scores) if section.kind is OutputKind.LOGITS else scores


def _in_pixels(boxes: Any, manifest: Manifest) -> Any:
    """Converts boxes N×A×4 to x1, y1, x2, y2 in pixels of the input."""
    form = manifest.box_format
    a, b, c, d = tf.unstack(boxes, axis=-1)
    match form.order:
        case BoxOrder.XYXY:
            corners = [a, b, c, d]
        case BoxOrder.YXYX:
            corners = [b, a, d, c]
        case BoxOrder.CXCYWH:
            corners = [a - c / 2, b - d / 2, a + c / 2, b + d / 2]
    pixels = tf.stack(corners, axis=-1)
    if form.normalised:
        width, height = manifest.input.width, manifest.input.height
        pixels *= tf.constant([width, height, width, height], tf.float32)
    return pixels


def _class_ids(output: Any, section: OutputSection, images: Any, manifest: Manifest, path: Path) -> Any:
    """Adds uint8 N×H×W class ids of the input's size; the lowest id wins a tie."""
    if section.kind is OutputKind.SCORES:
        _check_rank(output, section, _IMAGE_RANK, "scores need N×H×W×C", path)
        _check_channels(output, manifest, path)
        class_ids = tf.argmax(output, axis=-1, output_type=tf.int32)
    else:
        class_ids = _without_channel(output, section, images, path)
    class_ids = tf.cast(class_ids, tf.uint8)
    size = (manifest.input.height, manifest.input.width)
    if class_ids.shape.rank is not None and tuple(class_ids.shape[1:]) not in (size, (None, None)):
        # The output is smaller than the input: enlarge it by nearest neighbour.
        class_ids = tf.image.resize(class_ids[..., tf.newaxis], size, method="nearest")[..., 0]
    return class_ids


def _without_channel(output: Any, section: OutputSection, images: Any, path: Path) -> Any:
    """Returns class ids as N×H×W, from N×H×W, N×H×W×1, H×W or an unknown shape."""
    match output.shape.rank:
        case 2:
            return output[tf.newaxis]
        case 3:
            return output
        case 4 if output.shape[-1] == 1:
            return output[..., 0]
        case None:
            return tf.reshape(output, tf.shape(images)[:3])
    raise EngineError(
        path, f"output {section.tensor!r} is {output.shape}: class ids need N×H×W; for scores set output.kind"
    )


def _check_channels(output: Any, manifest: Manifest, path: Path) -> None:
    channels = output.shape[-1] if output.shape.rank else None
    labels = len(manifest.labels)  # 0 if the manifest names a labels file.
    if channels is not None and labels and channels != labels:
        raise EngineError(path, f"gives {channels} scores where the manifest has {labels} labels: name all")


def _check_rank(output: Any, section: OutputSection, rank: int, need: str, path: Path) -> None:
    if output.shape.rank not in (None, rank):
        raise EngineError(path, f"output {section.tensor!r} is {output.shape}: {need}")
