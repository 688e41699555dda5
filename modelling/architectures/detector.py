"""The detector: a trunk and LR-ASPP up to a quarter of the picture, where each cell proposes one box of each class.

There are no anchors: a cell says how likely the middle of a thing of each class is in it (Zhou et al. 2019, "Objects as
Points"), and, from wherever near the middle it is, where the thing's own middle is and how large it is.
"""

import math

from modelling.architectures import heads, mobilenet_v3
from modelling.architectures.blocks import BlockBuilder, Tensor
from modelling.architectures.networks import Network
from modelling.frameworks import keras, tf

STRIDE = 4  # Pixels of the picture to a side of a cell.

_UNIT = 8.0  # Pixels that a one of the network's numbers stands for.
_LARGEST_LOG = 5.0  # A box of 8·e⁵ = 1187 pixels: larger than any picture it is trained on.
_PRIOR = (
    0.01  # The share of cells with a thing in it; what an untrained network answers (Lin et al. 2017, section 3.3).
)


def road_objects(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-small at output stride 16, LR-ASPP to a quarter, one 3×3 convolution: 1.1 million weights.

    Gives two maps: logits N×⌈H/4⌉×⌈W/4⌉×classes, and shapes N×⌈H/4⌉×⌈W/4⌉×4, which `boxes` reads. Up to the quarter its
    layers have the names and shapes of road-small's, so that it can start from what that has learnt.
    """
    blocks = BlockBuilder(folded)
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(blocks, picture, mobilenet_v3.SMALL, output_stride=16, last=576)
    quarter = heads.quartered(blocks, features, width=128, sixteenth=True)
    shared = blocks.convolution(quarter, 64, "detect.shared", kernel=3, activation="relu")
    rare = keras.initializers.Constant(math.log(_PRIOR / (1 - _PRIOR)))
    logits = keras.layers.Conv2D(classes, 1, bias_initializer=rare, name="detect.logits")(shared)
    shapes = keras.layers.Conv2D(4, 1, kernel_initializer="zeros", name="detect.shapes")(shared)
    return keras.Model(picture, [logits, shapes], name="network")


def cells(height: int, width: int) -> tuple[int, int]:
    """The rows and columns of cells of a picture."""
    return -(-height // STRIDE), -(-width // STRIDE)


def boxes(shapes: Tensor, rows: int, columns: int) -> Tensor:
    """The boxes N×rows×columns×4 (x1, y1, x2, y2 in pixels of the picture, not clipped to it) that the shapes mean.

    A shape is how far its thing's middle is from its cell's to the right and down, in units of 8 pixels, and the
    logarithms of the width and height in those units.
    """
    across = (tf.range(columns, dtype=tf.float32) + 0.5) * STRIDE
    down = (tf.range(rows, dtype=tf.float32) + 0.5) * STRIDE
    cells = tf.stack(tf.meshgrid(across, down), axis=-1)
    middle = cells + _UNIT * shapes[..., :2]
    half = _UNIT / 2 * tf.exp(tf.minimum(shapes[..., 2:], _LARGEST_LOG))
    return tf.concat([middle - half, middle + half], axis=-1)
