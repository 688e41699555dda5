"""The networks: segmentations, the object detector, and the classifiers on MobileNetV3 and EfficientNet.

Each function returns a keras.Model. `folded` and `thinned` are explained in `blocks` and `mobilenet_v3.trunk`.
"""

import math
from dataclasses import dataclass
from typing import Any

from modelling.architectures import heads, mobilenet_v3
from modelling.architectures.blocks import BlockBuilder, ResizeLike, Tensor, rounded
from modelling.frameworks import keras, tf
from rosbag_tools.drive.scene import CLASSES, HEIGHT_SHARE, OBJECTS, PRESENCE

Network = Any  # A keras.Model; Keras has no type hints.


def image_input() -> Tensor:
    """Returns a Keras input for images N×H×W×3 of any size."""
    return keras.Input((None, None, 3), name="picture")


def road_small(classes: int, *, folded: bool, thinned: bool = False) -> Network:
    """MobileNetV3-small at output stride 8 with LR-ASPP: 1.1 million weights."""
    blocks, image = BlockBuilder(folded), image_input()
    features = mobilenet_v3.trunk(blocks, image, mobilenet_v3.SMALL, output_stride=8, last=576, thinned=thinned)
    return _segmentation(image, heads.lr_aspp(blocks, features, classes, width=128, thinned=thinned))


def road_tiny(classes: int, *, folded: bool) -> Network:
    """The first eight blocks of MobileNetV3-small at output stride 16 with a small LR-ASPP: 0.26 million weights.

    Most layers have the names and shapes of those in road-small, whose weights can therefore initialise them.
    """
    blocks, image = BlockBuilder(folded), image_input()
    features = mobilenet_v3.trunk(blocks, image, mobilenet_v3.SMALL[:8], output_stride=16, last=144)
    return _segmentation(image, heads.small_lr_aspp(blocks, features, classes, width=128))


def road_large(classes: int, *, folded: bool, thinned: bool = False) -> Network:
    """MobileNetV3-large at output stride 8, its last stage at half width, with LR-ASPP: 2.2 million weights."""
    blocks, image = BlockBuilder(folded), image_input()
    specs = mobilenet_v3.with_halved_tail(mobilenet_v3.LARGE)
    features = mobilenet_v3.trunk(blocks, image, specs, output_stride=8, last=960, thinned=thinned)
    return _segmentation(image, heads.lr_aspp(blocks, features, classes, width=256, thinned=thinned))


def street_deeplab(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large at output stride 8 with DeepLabV3+: 12 million weights."""
    blocks, image = BlockBuilder(folded), image_input()
    features = mobilenet_v3.trunk(blocks, image, mobilenet_v3.LARGE, output_stride=8, last=960)
    return _segmentation(image, heads.deeplab_v3_plus(blocks, features, classes, width=256, rates=(12, 24, 36)))


def street_lite(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large at output stride 16 with a DeepLabV3+ of half the width: 7 million weights."""
    blocks, image = BlockBuilder(folded), image_input()
    features = mobilenet_v3.trunk(blocks, image, mobilenet_v3.LARGE, output_stride=16, last=960)
    return _segmentation(image, heads.deeplab_v3_plus(blocks, features, classes, width=128, rates=(6, 12, 18)))


def road_weather(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-small at output stride 32, mean pooling and one dense layer: 1.0 million weights, logits N×classes."""
    image = image_input()
    features = mobilenet_v3.trunk(BlockBuilder(folded), image, mobilenet_v3.SMALL, output_stride=32, last=576)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    return keras.Model(image, keras.layers.Dense(classes, name="logits")(means), name="network")


def mobilenet_v3_large(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large as published, with its hidden layer of 1,280: 5.5 million weights for 1,000 classes.

    The output is logits N×classes.
    """
    image = image_input()
    features = mobilenet_v3.trunk(
        BlockBuilder(folded),
        image,
        mobilenet_v3.LARGE,
        output_stride=32,
        last=960,
        gate_width=mobilenet_v3.rounded_quarter,
    )
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    hidden = keras.layers.Dense(1280, activation=mobilenet_v3.SWISH, name="hidden")(means)
    return keras.Model(image, keras.layers.Dense(classes, name="logits")(hidden), name="network")


def _segmentation(image: Tensor, scores: Tensor) -> Network:
    # Without a name, Keras numbers its networks, and the same weights give different bytes in the second one.
    return keras.Model(image, ResizeLike(name="scores")(scores, image), name="network")


_WINDOW = 1.2  # The height of the window of `TallestVehicle`, relative to that of the smallest vehicle that counts.
# Fitted on 800 scenes of the training's fixed cameras: the share of a window's pixels at which both answers are as likely,
# and how quickly the logit grows with it.
_EVEN, _SHARPNESS = 0.85, 15.0


def car_tiny(classes: int, *, folded: bool) -> Network:
    """The first five blocks of MobileNetV3-small, and one dense layer: 0.08 million weights, logits N×classes.

    The largest value of a feature answers whether something is anywhere in the image, which its mean does not. The blocks
    have the names and shapes of those in road-small, whose weights can therefore initialise them.
    """
    image = image_input()
    features = mobilenet_v3.trunk(BlockBuilder(folded), image, mobilenet_v3.SMALL[:5], output_stride=16, last=96)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    largest = keras.layers.GlobalMaxPooling2D(name="largest")(features.last)
    both = keras.layers.Concatenate(name="pools")([means, largest])
    return keras.Model(image, keras.layers.Dense(classes, name="logits")(both), name="network")


def car_reference(classes: int, *, folded: bool) -> Network:
    """The segmentation road-small with `TallestVehicle` instead of its last layer: logits N×2.

    Its weights are those of road-small, so it needs no training.
    """
    assert classes == len(PRESENCE)
    network = road_small(len(CLASSES), folded=folded)
    answer = TallestVehicle(name="answer")(network.get_layer("head.scores").output)
    return keras.Model(network.input, answer, name="network")


class TallestVehicle(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Answers "is there a vehicle?" from the scores of the drive's classes, N×H×W×12.

    The answer depends on the largest share of vehicle pixels in a window of one column, a little higher than the smallest
    vehicle that counts. A box would be the better measure, but the detector of the moving camera finds fewer of the nearest
    vehicles, which the edge of a fixed camera's image cuts off.
    """

    def call(self, scores: Tensor) -> Tensor:
        """Returns the logits of "no vehicle", always 0, and of "vehicle"."""
        shares = tf.nn.softmax(scores)
        vehicle = tf.add_n([shares[..., CLASSES.index(name)] for name in OBJECTS["vehicle"]])
        rows = tf.cast(_WINDOW * HEIGHT_SHARE * tf.cast(tf.shape(scores)[1], tf.float32), tf.int32)
        above = tf.cumsum(vehicle, axis=1)
        largest = tf.reduce_max(above[:, rows:] - above[:, :-rows], axis=[1, 2]) / tf.cast(rows, tf.float32)
        answer = _SHARPNESS * (largest - _EVEN)
        return tf.stack([tf.zeros_like(answer), answer], axis=-1)

    def compute_output_shape(self, scores: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns one logit per answer."""
        return (scores[0], len(PRESENCE))


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


SWISH = "silu"


@dataclass(frozen=True, slots=True)
class EfficientNetStage:
    """A stage of B0, a row of the paper's table 1; only the first of the `repeats` blocks has the stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int
    kernel: int


STAGES = (
    EfficientNetStage(1, 16, 1, 1, 3),
    EfficientNetStage(6, 24, 2, 2, 3),
    EfficientNetStage(6, 40, 2, 2, 5),
    EfficientNetStage(6, 80, 3, 2, 3),
    EfficientNetStage(6, 112, 3, 1, 5),
    EfficientNetStage(6, 192, 4, 2, 5),
    EfficientNetStage(6, 320, 1, 1, 3),
)
_STEM, _LAST = 32, 1280


def efficientnet(classes: int, *, width: float, depth: float, folded: bool) -> Network:
    """EfficientNet-B0 scaled by `width` and `depth`, for images of any size; the output is logits N×classes."""
    blocks, image = BlockBuilder(folded), image_input()
    features = blocks.convolution(image, rounded(_STEM * width), "stem", kernel=3, stride=2, activation=SWISH)
    number = 0
    for stage in STAGES:
        for repeat in range(math.ceil(stage.repeats * depth)):
            number += 1
            stride = 1 if repeat else stage.stride
            features = _block(
                blocks, features, stage, f"block{number}", channels=rounded(stage.channels * width), stride=stride
            )
    features = blocks.convolution(features, rounded(_LAST * width), "last", activation=SWISH)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    return keras.Model(image, keras.layers.Dense(classes, name="logits")(means), name="network")


def b7(classes: int, *, folded: bool) -> Network:
    """EfficientNet-B7: twice the width and 3.1 times the depth of B0; 66 million weights for 1,000 classes."""
    return efficientnet(classes, width=2.0, depth=3.1, folded=folded)


def _block(
    blocks: BlockBuilder, block_input: Tensor, stage: EfficientNetStage, name: str, *, channels: int, stride: int
) -> Tensor:
    """An inverted residual; its squeeze-and-excitation reduces to a quarter of the block's input channels."""
    features, in_channels = block_input, block_input.shape[-1]
    if stage.expansion > 1:
        features = blocks.convolution(features, in_channels * stage.expansion, f"{name}.widen", activation=SWISH)
    features = blocks.depthwise(features, f"{name}.spatial", kernel=stage.kernel, stride=stride, activation=SWISH)
    features = blocks.squeeze_excite(
        features, f"{name}.gate", squeezed=max(1, in_channels // 4), activation=SWISH, gate="sigmoid"
    )
    features = blocks.convolution(features, channels, f"{name}.narrow")
    if stride > 1 or channels != in_channels:
        return features
    return keras.layers.Add(name=f"{name}.sum")([features, block_input])
