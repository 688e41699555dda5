"""The building blocks of MobileNetV3 and its heads.

A network has two variants. For training, batch normalisation follows each convolution. For inference (`folded`), the
normalisation is part of the convolution's weights and bias; `training.weights.fold` converts the weights.

Dilated convolutions are implemented by `SpaceToBatch`: it splits a map into interleaved smaller maps, its phases, stacked
along the batch, and a plain convolution on them equals a dilated one on the whole map. TensorFlow would split and join the
map around every dilated depthwise convolution; here this happens once for all blocks of one dilation.
"""

from dataclasses import dataclass
from typing import Any

from modelling.frameworks import keras, tf

EPSILON = 1e-3  # Added to the variance by batch normalisation.
_DIVISOR = 8  # The widths of published networks are multiples of this.
_MIN_ROUNDING = 0.9  # Rounding reduces a width by at most a tenth.

Tensor = Any  # A keras.KerasTensor; Keras has no type hints.


class SpaceToBatch(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Splits a map into its four phases: every second row and column, after zero-padding to a multiple of m pixels.

    N×H×W×C becomes 4N×⌈H/m⌉·m/2×⌈W/m⌉·m/2×C.
    """

    def __init__(self, multiple: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.multiple = multiple

    def call(self, features: Tensor) -> Tensor:
        """Splits the map."""
        shape = tf.shape(features)
        rows = -shape[1] % self.multiple
        columns = -shape[2] % self.multiple
        return tf.space_to_batch(features, [2, 2], [[0, rows], [0, columns]])

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns half the padded height and width, and four times the batch."""
        batch, height, width, channels = shape
        return (None if batch is None else 4 * batch, self._halved(height), self._halved(width), channels)

    def _halved(self, length: int | None) -> int | None:
        return None if length is None else (length + -length % self.multiple) // 2


class BatchToSpace(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Inverts `splits` nested `SpaceToBatch` layers and crops the result to the size of `like`, N×H×W×C'."""

    def __init__(self, splits: int, **options: Any) -> None:
        super().__init__(**options)
        self.splits = splits

    def call(self, features: Tensor, like: Tensor) -> Tensor:
        """Joins the phases."""
        for _ in range(self.splits):
            features = tf.batch_to_space(features, [2, 2], [[0, 0], [0, 0]])
        shape = tf.shape(like)
        return features[:, : shape[1], : shape[2], :]

    def compute_output_shape(
        self, features_shape: tuple[int | None, ...], like_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """Returns the size of `like` with the channels of the phases."""
        return (*like_shape[:3], features_shape[3])


class RandomPhase(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Selects one of the four phases at random in each training step, for a quarter of the cost; even sizes only.

    N×H×W×C becomes N×H/2×W/2×C.
    """

    def call(self, features: Tensor) -> Tensor:
        """Selects a phase."""
        start = tf.random.uniform([2], 0, 2, tf.int32)
        return features[:, start[0] :: 2, start[1] :: 2]

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns half the height and width."""
        batch, height, width, channels = shape
        return (batch, height and height // 2, width and width // 2, channels)


class PooledPhases(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Computes the mean of each channel over the whole image, and repeats it for each of its 4**splits phases.

    N×H×W×C, where N counts the phases of all images, becomes N×1×1×C.
    """

    def __init__(self, splits: int, **options: Any) -> None:
        super().__init__(**options)
        self.splits = splits

    def call(self, features: Tensor) -> Tensor:
        """Computes the means."""
        means = tf.reduce_mean(features, axis=[1, 2], keepdims=True)
        if not self.splits:
            return means
        phases = 4**self.splits
        channels = features.shape[3]
        whole = tf.reduce_mean(tf.reshape(means, [phases, -1, 1, 1, channels]), axis=0)
        return tf.tile(whole, [phases, 1, 1, 1])

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns one number per channel."""
        return (shape[0], 1, 1, shape[3])


class ResizeLike(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type hints.
    """Resizes a map to the height and width of another, bilinear with half-pixel centres."""

    def call(self, features: Tensor, like: Tensor) -> Tensor:
        """Resizes the map."""
        resized = tf.image.resize(features, tf.shape(like)[1:3], method="bilinear")
        return tf.cast(resized, features.dtype)

    def compute_output_shape(
        self, features_shape: tuple[int | None, ...], like_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """Returns the size of `like` with the channels of the resized map."""
        return (*like_shape[:3], features_shape[3])


class FusedNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]  # Keras has no type hints.
    """Batch normalisation as one operation; Keras uses a dozen, which take a third of a training step on a CPU."""

    def call(self, features: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:  # noqa: ARG002, FBT001 - Keras calls it so.
        """Normalises by the batch's statistics in training, else by the running mean and variance."""
        scale, offset = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        if not training:
            mean, variance = tf.convert_to_tensor(self.moving_mean), tf.convert_to_tensor(self.moving_variance)
            return tf.compat.v1.nn.fused_batch_norm(
                features, scale, offset, mean, variance, epsilon=self.epsilon, is_training=False
            )[0]
        normalised, mean, variance = tf.compat.v1.nn.fused_batch_norm(features, scale, offset, epsilon=self.epsilon)
        self.moving_mean.assign(self.moving_mean * self.momentum + mean * (1 - self.momentum))
        self.moving_variance.assign(self.moving_variance * self.momentum + variance * (1 - self.momentum))
        return normalised


def rounded(channels: float) -> int:
    """Rounds a width as the published networks do: to the nearest multiple of 8, or up if that removes over a tenth."""
    nearest = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return nearest if nearest >= _MIN_ROUNDING * channels else nearest + _DIVISOR


def _unit_gain(kernel: int) -> Any:
    """Returns He's initialiser for depthwise kernels, which have one input channel.

    Keras counts all channels, so its kernels start tens of times too small and disturb the first thousand steps.
    """
    return keras.initializers.RandomNormal(stddev=2**0.5 / kernel)


@dataclass(frozen=True, slots=True)
class BlockBuilder:
    """Builds the blocks of one network.

    `folded` omits batch normalisation; `momentum` is that of its running means.
    """

    folded: bool
    momentum: float = 0.97

    def convolution(
        self,
        features: Tensor,
        channels: int,
        name: str,
        *,
        kernel: int = 1,
        stride: int = 1,
        dilation: int = 1,
        activation: str | None = None,
    ) -> Tensor:
        """Adds a convolution with SAME padding, normalisation and activation; layers `name.conv` and `name.norm`."""
        features = keras.layers.Conv2D(
            channels,
            kernel,
            strides=stride,
            dilation_rate=dilation,
            padding="same",
            use_bias=self.folded,
            kernel_initializer="he_normal",
            name=f"{name}.conv",
        )(features)
        return self._normalised(features, name, activation)

    def depthwise(
        self, features: Tensor, name: str, *, kernel: int = 3, stride: int = 1, activation: str | None = None
    ) -> Tensor:
        """Adds one kernel×kernel filter per channel with SAME padding, normalisation and activation."""
        features = keras.layers.DepthwiseConv2D(
            kernel,
            strides=stride,
            padding="same",
            use_bias=self.folded,
            depthwise_initializer=_unit_gain(kernel),
            name=f"{name}.conv",
        )(features)
        return self._normalised(features, name, activation)

    def squeeze_excite(
        self,
        features: Tensor,
        name: str,
        *,
        squeezed: int,
        activation: str = "relu",
        gate: str = "hard_sigmoid",
        splits: int = 0,
    ) -> Tensor:
        """Scales each channel by a gate computed from the means of all channels (Hu et al. 2018).

        `squeezed` is the number of channels in between; the default activations are MobileNetV3's.
        """
        means = PooledPhases(splits, name=f"{name}.pool")(features)
        hidden = keras.layers.Conv2D(squeezed, 1, activation=activation, name=f"{name}.squeeze")(means)
        gates = keras.layers.Conv2D(features.shape[-1], 1, activation=gate, name=f"{name}.excite")(hidden)
        return keras.layers.Multiply(name=f"{name}.scale")([features, gates])

    def _normalised(self, features: Tensor, name: str, activation: str | None) -> Tensor:
        if not self.folded:
            features = FusedNormalization(momentum=self.momentum, epsilon=EPSILON, name=f"{name}.norm")(features)
        if activation is not None:
            features = keras.layers.Activation(activation, name=f"{name}.{activation}")(features)
        return features
