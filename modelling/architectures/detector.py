"""The detector: a trunk and LR-ASPP at a quarter of the image's size, where each cell predicts one box.

There are no anchors: a cell predicts the probability that it contains the centre of an object of each class (Zhou et al.
2019, "Objects as Points"), and the offset and size of the object whose centre is near.
"""

import math

from modelling.architectures import heads, mobilenet_v3
from modelling.architectures.blocks import BlockBuilder, Tensor
from modelling.architectures.networks import Network, image_input
from modelling.frameworks import keras, tf

STRIDE = 4  # Pixels of the image per side of a cell.

_UNIT = 8.0  # Pixels per unit of the network's box outputs.
_LARGEST_LOG = 5.0  # Limits a box to 8·e⁵ = 1187 pixels, more than any training image has.
_PRIOR = 0.01  # The share of cells with an object, which an untrained network predicts (Lin et al. 2017, section 3.3).


def road_objects(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-small at output stride 16, LR-ASPP to a quarter, one 3×3 convolution: 1.1 million weights.

    The outputs are logits N×⌈H/4⌉×⌈W/4⌉×classes, and shapes N×⌈H/4⌉×⌈W/4⌉×4, which `decode_boxes` converts to boxes. The
    layers up to the quarter have the names and shapes of those in road-small, whose weights can therefore initialise them.
    """
    blocks, image = BlockBuilder(folded), image_input()
    features = mobilenet_v3.trunk(blocks, image, mobilenet_v3.SMALL, output_stride=16, last=576)
    quarter = heads.quarter_features(blocks, features, width=128, sixteenth=True)
    shared = blocks.convolution(quarter, 64, "detect.shared", kernel=3, activation="relu")
    prior_bias = keras.initializers.Constant(math.log(_PRIOR / (1 - _PRIOR)))
    logits = keras.layers.Conv2D(classes, 1, bias_initializer=prior_bias, name="detect.logits")(shared)
    shapes = keras.layers.Conv2D(4, 1, kernel_initializer="zeros", name="detect.shapes")(shared)
    return keras.Model(image, [logits, shapes], name="network")


def grid_size(height: int, width: int) -> tuple[int, int]:
    """Returns the rows and columns of cells for an image size."""
    return -(-height // STRIDE), -(-width // STRIDE)


def decode_boxes(shapes: Tensor, rows: int, columns: int) -> Tensor:
    """Converts shapes to boxes N×rows×columns×4: x1, y1, x2, y2 in pixels of the image, not clipped.

    A shape is the offset of the object's centre from the cell's centre, right and down, in units of 8 pixels, and the
    logarithms of the width and height in these units.
    """
    x = (tf.range(columns, dtype=tf.float32) + 0.5) * STRIDE
    y = (tf.range(rows, dtype=tf.float32) + 0.5) * STRIDE
    cell_centres = tf.stack(tf.meshgrid(x, y), axis=-1)
    centres = cell_centres + _UNIT * shapes[..., :2]
    half = _UNIT / 2 * tf.exp(tf.minimum(shapes[..., 2:], _LARGEST_LOG))
    return tf.concat([centres - half, centres + half], axis=-1)
