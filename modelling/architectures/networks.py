"""The segmentation networks and the MobileNetV3 classifiers; `detector` and `efficientnet` contain the others.

Each function returns a keras.Model. `folded` and `thinned` are explained in `blocks` and `mobilenet_v3.trunk`.
"""

from typing import Any

from modelling.architectures import heads, mobilenet_v3
from modelling.architectures.blocks import BlockBuilder, ResizeLike, Tensor
from modelling.frameworks import keras

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
