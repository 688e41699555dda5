"""The classifier: a trunk, its mean over the picture, one dense layer."""

from modelling.architectures import mobilenet_v3
from modelling.architectures.blocks import Blocks
from modelling.architectures.networks import Network
from modelling.frameworks import keras


def road_weather(classes: int, *, folded: bool) -> Network:
    """MobileNetV3-small at output stride 32, global mean pooling and one dense layer: 1.0 million weights.

    Gives logits N×classes.
    """
    picture = keras.Input((None, None, 3), name="picture")
    features = mobilenet_v3.trunk(Blocks(folded), picture, mobilenet_v3.SMALL, output_stride=32, last=576)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features.last)
    return keras.Model(picture, keras.layers.Dense(classes, name="logits")(means), name="network")
