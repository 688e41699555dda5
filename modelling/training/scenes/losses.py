"""The losses of the classifiers and the object detector."""

from typing import Any

from modelling.architectures.detector import decode_boxes
from modelling.frameworks import tf
from modelling.training.scenes.object_batches import DetectionTarget

_BOX_WEIGHT = 5.0  # The value of Liu et al. 2020.
# Label smoothing, because classes are not always distinct: dense haze at dusk is a mixture, and a box may be just too small.
_SMOOTHING = 0.05


def classification_loss(logits: Any, class_ids: Any) -> Any:
    """Returns the cross-entropy of logits B×classes and class ids B, with label smoothing."""
    classes = logits.shape[-1]
    target = tf.one_hot(class_ids, classes) * (1 - _SMOOTHING) + _SMOOTHING / classes
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, logits))


def object_loss(maps: Any, target: DetectionTarget) -> Any:
    """Returns the focal loss of the heat map (Zhou et al. 2019, equation 1) plus the generalised IoU loss of the boxes."""
    logits, shapes = maps
    probability = tf.sigmoid(logits)
    centre = tf.cast(target.heat >= 1, tf.float32)
    positive = centre * (1 - probability) ** 2 * tf.math.log_sigmoid(logits)
    negative = (1 - centre) * (1 - target.heat) ** 4 * probability**2 * tf.math.log_sigmoid(-logits)
    centres = tf.maximum(tf.reduce_sum(centre), 1.0)
    heat_loss = -tf.reduce_sum((positive + negative) * target.counted[..., tf.newaxis]) / centres
    rows, columns = target.counted.shape[1:]
    iou = generalised_iou(decode_boxes(shapes, rows, columns), target.boxes)
    box_loss = tf.reduce_sum((1 - iou) * target.weights) / tf.maximum(tf.reduce_sum(target.weights), 1e-6)
    return heat_loss + _BOX_WEIGHT * box_loss


def generalised_iou(one: Any, other: Any) -> Any:
    """Returns the generalised intersection over union (Rezatofighi et al. 2019) of boxes …×4, from -1 to 1."""
    intersection = _area(tf.maximum(one[..., :2], other[..., :2]), tf.minimum(one[..., 2:], other[..., 2:]))
    union = _area(one[..., :2], one[..., 2:]) + _area(other[..., :2], other[..., 2:]) - intersection
    hull = _area(tf.minimum(one[..., :2], other[..., :2]), tf.maximum(one[..., 2:], other[..., 2:]))
    return tf.math.divide_no_nan(intersection, union) - tf.math.divide_no_nan(hull - union, hull)


def _area(low: Any, high: Any) -> Any:
    return tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)
