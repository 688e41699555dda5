"""The classifiers that answer "is there a vehicle?" for a fixed camera (see `modelling.recipes.PRESENCE`)."""

from modelling.architectures import mobilenet_v3
from modelling.architectures.blocks import BlockBuilder, Tensor
from modelling.architectures.networks import Network, image_input, road_small
from modelling.frameworks import keras, tf
from modelling.recipes import HEIGHT_SHARE, OBJECTS, PRESENCE
from rosbag_tools.drive.scene import CLASSES

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
