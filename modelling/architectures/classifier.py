"""The classifiers of whole pictures: a trunk, its mean over the picture, dense layers."""

from modelling.architectures import mobilenet_v3
from modelling.architectures.blocks import BlockBuilder
from modelling.architectures.networks import Network
from modelling.frameworks import keras


def road_weather(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-small at output stride 32, global mean pooling and one dense layer: 1.0 million weights.

    Gives logits N×classes.
    """
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(BlockBuilder(folded), picture, mobilenet_v3.SMALL, output_stride=32, last=576)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    return keras.Model(picture, keras.layers.Dense(classes, name="logits")(means), name="network")


def mobilenet_v3_large(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-large as it was published, with its hidden layer of 1,280: 5.5 million weights for 1,000 classes.

    Gives logits N×classes.
    """
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(
        BlockBuilder(folded),
        picture,
        mobilenet_v3.LARGE,
        output_stride=32,
        last=960,
        narrowing=mobilenet_v3.rounded_quarter,
    )
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    hidden = keras.layers.Dense(1280, activation=mobilenet_v3.SWISH, name="hidden")(means)
    return keras.Model(picture, keras.layers.Dense(classes, name="logits")(hidden), name="network")
