"""Preprocessing and postprocessing as TensorFlow operations.

The steps equal those of `shared.inference.pre_postprocess`, which also checks the shapes here.
"""

from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.runtime import tf
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
from shared.messages.tensors import DTYPES
from shared.models.manifest import MASK, Manifest, OutputKind, OutputSection
from shared.task import CONFIDENCE_HEAD, SMALLEST


def preprocess_ops(images: Any, preprocessor: Preprocessor) -> Any:
    """Adds `(pixel * scale - mean) / std` in the model's dtype, for `images`, uint8 N×H×W×3."""
    if preprocessor.levels is not None:
        channels, count = preprocessor.levels.shape
        places = tf.cast(images, tf.int32) + [channel * count for channel in range(channels)]
        images = tf.gather(preprocessor.levels.reshape(-1), places)
    values = tf.transpose(images, (0, 3, 1, 2)) if preprocessor.planar else images
    dtype = preprocessor.section.dtype
    if preprocessor.levels is not None or dtype == "uint8":
        return values
    return preprocessor.scaled(tf.cast(values, dtype))


def postprocess_ops(head: str, output: Any, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Any:
    """Adds the operations that turn a model's raw output into the head that `Engine.infer` defines.

    Raises:
        EngineError: the output does not match the manifest.
    """
    shape = None if output.shape.rank is None else output.shape.as_list()
    section = manifest.heads[head]
    check_output(head, shape, preprocessor, manifest, path)
    match section.kind:
        case OutputKind.TENSOR if output.dtype.name in DTYPES:
            return output
        case OutputKind.TENSOR:
            problem = (
                f"output {section.tensor!r} is {output.dtype.name}: only numbers can be sent ({', '.join(DTYPES)})"
            )
            raise EngineError(path, problem)
        case _ if head == MASK:
            if shape is None and section.kind in THRESHOLDS:
                raise EngineError(path, f"output {section.tensor!r} has no known shape: kind {section.kind} needs one")
            return _class_ids(output, shape, section, preprocessor, manifest)
        case _ if head == CONFIDENCE_HEAD:
            if shape is None:
                raise EngineError(path, f"output {section.tensor!r} has no known shape: a confidence needs one")
            scores = tf.cast(output, tf.float32)
            if scores_axis(shape, section, preprocessor, manifest) == 1:
                scores = tf.transpose(scores, (0, 2, 3, 1))
            return tf.math.log(tf.maximum(scores, SMALLEST)) if section.kind is OutputKind.PROBABILITIES else scores
        case OutputKind.BOXES:
            return tf.concat(box_corners(tf.split(tf.cast(output, tf.float32), 4, axis=-1), manifest), axis=-1)
        case OutputKind.LOGITS:
            output = (tf.nn.sigmoid if has_odds(manifest) else tf.nn.softmax)(tf.cast(output, tf.float32))
    output = tf.cast(output, tf.float32)
    return output[..., objects_slice(manifest)] if section.kind in THRESHOLDS else output


def _class_ids(
    output: Any, shape: Shape | None, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest
) -> Any:
    """Adds N×H×W class ids of the input's size, int32 if the model's own may exceed uint8; the lowest id wins a tie."""
    size = (manifest.input.height, manifest.input.width)
    if section.kind is OutputKind.CLASS_IDS:
        axis = None if shape is None else axis_of_one(shape)
        if shape is None:
            output = tf.reshape(output, (-1, *size))
        elif axis is not None:
            output = tf.squeeze(output, axis)
        elif len(shape) == 2:  # H×W
            output = output[tf.newaxis]
    elif shape is None:
        output = tf.argmax(output, axis=-1, output_type=tf.int32)
    else:
        axis = scores_axis(shape, section, preprocessor, manifest) if len(shape) == MAP_RANK else None
        if axis is not None and shape[axis] != 1:
            best = tf.argmax(output, axis=axis, output_type=tf.int32)
            if has_background(shape[axis] or 0, section, manifest):
                above = tf.reduce_max(output, axis) > threshold(section.kind, output.dtype.as_numpy_dtype)
                best = tf.where(above, best + 1, 0)
            output = best
        else:
            limit = threshold(section.kind, output.dtype.as_numpy_dtype)
            output = (output if axis is None else tf.squeeze(output, axis)) > limit
    is_checked = section.kind is OutputKind.CLASS_IDS and output.dtype not in (tf.uint8, tf.bool)
    class_ids = tf.cast(output, tf.int32 if is_checked else tf.uint8)  # The engine checks an int32.
    if class_ids.shape.rank is not None and tuple(class_ids.shape[1:]) not in (size, (None, None)):
        # The output is smaller than the input: enlarge it by nearest neighbour.
        class_ids = tf.image.resize(class_ids[..., tf.newaxis], size, method="nearest")[..., 0]
    return class_ids
