"""What the classifier's and the detector's training make smaller."""

from typing import Any

from modelling.architectures.detector import boxes
from modelling.frameworks import tf
from modelling.training.scenes.object_batches import Truth

_BOX_WEIGHT = 5.0  # As in Liu et al. 2020.
_SMOOTHING = 0.05  # Of the weathers' truth: a heavy haze at dusk is a little of both.


def weather_loss(logits: Any, weathers: Any) -> Any:
    """Cross-entropy of logits B×classes with weathers B, slightly smoothed."""
    classes = logits.shape[-1]
    wanted = tf.one_hot(weathers, classes) * (1 - _SMOOTHING) + _SMOOTHING / classes
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, logits))


def object_loss(maps: Any, wanted: Truth) -> Any:
    """The focal loss of the heat (Zhou et al. 2019, equation 1) plus the generalised IoU of the boxes."""
    logits, shapes = maps
    likely = tf.sigmoid(logits)
    middle = tf.cast(wanted.heat >= 1, tf.float32)
    found = middle * (1 - likely) ** 2 * tf.math.log_sigmoid(logits)
    quiet = (1 - middle) * (1 - wanted.heat) ** 4 * likely**2 * tf.math.log_sigmoid(-logits)
    heat = -tf.reduce_sum((found + quiet) * wanted.judged[..., tf.newaxis]) / tf.maximum(tf.reduce_sum(middle), 1.0)
    rows, columns = wanted.judged.shape[1:]
    gained = generalised_iou(boxes(shapes, rows, columns), wanted.boxes)
    shape = tf.reduce_sum((1 - gained) * wanted.weights) / tf.maximum(tf.reduce_sum(wanted.weights), 1e-6)
    return heat + _BOX_WEIGHT * shape


def generalised_iou(one: Any, other: Any) -> Any:
    """Generalised intersection over union (Rezatofighi et al. 2019) of boxes …×4; -1 to 1."""
    both = _area(tf.maximum(one[..., :2], other[..., :2]), tf.minimum(one[..., 2:], other[..., 2:]))
    either = _area(one[..., :2], one[..., 2:]) + _area(other[..., :2], other[..., 2:]) - both
    around = _area(tf.minimum(one[..., :2], other[..., :2]), tf.maximum(one[..., 2:], other[..., 2:]))
    return tf.math.divide_no_nan(both, either) - tf.math.divide_no_nan(around - either, around)


def _area(low: Any, high: Any) -> Any:
    return tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)
