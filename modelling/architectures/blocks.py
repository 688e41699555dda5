"""The blocks MobileNetV3 and its heads are made of.

A network is built in one of two shapes. For training each convolution is followed by batch normalisation; for
inference (`folded`) the normalisation has become the convolution's bias. `modelling.folding` turns the weights of the
first into those of the second.

Dilation is done by phases: `SpaceToBatch` cuts a map into rate×rate interleaved smaller maps stacked along the batch,
where an undilated convolution is the dilated one on the whole map. TensorFlow would do that cut and its inverse around
every single dilated depthwise convolution; here it is made once for all the blocks of one dilation.
"""

from dataclasses import dataclass
from typing import Any

from modelling.frameworks import keras, tf

EPSILON = 1e-3  # Added to the variance by normalisation.
_DIVISOR = 8  # Of which the widths of published networks are multiples.
_LEAST = 0.9  # Rounding takes no more than a tenth of a width away.

Tensor = Any  # keras.KerasTensor; Keras ships no types.


class SpaceToBatch(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """N×H×W×C → 4N×⌈H/m⌉·m/2×⌈W/m⌉·m/2×C: every second row and column, zero-padded to a multiple m of the size."""

    def __init__(self, multiple: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.multiple = multiple

    def call(self, features: Tensor) -> Tensor:
        """Cut."""
        shape = tf.shape(features)
        rows = -shape[1] % self.multiple
        columns = -shape[2] % self.multiple
        return tf.space_to_batch(features, [2, 2], [[0, rows], [0, columns]])

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Half the padded height and width; four times the batch."""
        batch, height, width, channels = shape
        return (None if batch is None else 4 * batch, self._halved(height), self._halved(width), channels)

    def _halved(self, length: int | None) -> int | None:
        return None if length is None else (length + -length % self.multiple) // 2


class BatchToSpace(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """The inverse of `splits` nested `SpaceToBatch`, cropped to the size of `like`, a map of N×H×W×C'."""

    def __init__(self, splits: int, **options: Any) -> None:
        super().__init__(**options)
        self.splits = splits

    def call(self, features: Tensor, like: Tensor) -> Tensor:
        """Join."""
        for _ in range(self.splits):
            features = tf.batch_to_space(features, [2, 2], [[0, 0], [0, 0]])
        shape = tf.shape(like)
        return features[:, : shape[1], : shape[2], :]

    def compute_output_shape(
        self, features_shape: tuple[int | None, ...], like_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """The size of `like` with the channels of the phases."""
        return (*like_shape[:3], features_shape[3])


class RandomPhase(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """N×H×W×C → N×H/2×W/2×C: one of the four phases, each time another at random; even sizes only."""

    def call(self, features: Tensor) -> Tensor:
        """Choose."""
        start = tf.random.uniform([2], 0, 2, tf.int32)
        return features[:, start[0] :: 2, start[1] :: 2]

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Half the height and width."""
        batch, height, width, channels = shape
        return (batch, height and height // 2, width and width // 2, channels)


class PooledPhases(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """The mean of each channel over a whole picture, N×1×1×C, given to each of its 4**splits phases."""

    def __init__(self, splits: int, **options: Any) -> None:
        super().__init__(**options)
        self.splits = splits

    def call(self, features: Tensor) -> Tensor:
        """Pool."""
        means = tf.reduce_mean(features, axis=[1, 2], keepdims=True)
        if not self.splits:
            return means
        phases = 4**self.splits
        channels = features.shape[3]
        whole = tf.reduce_mean(tf.reshape(means, [phases, -1, 1, 1, channels]), axis=0)
        return tf.tile(whole, [phases, 1, 1, 1])

    def compute_output_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """One number a channel."""
        return (shape[0], 1, 1, shape[3])


class ResizeLike(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types.
    """Bilinear resize of a map to the height and width of another, half-pixel centres."""

    def call(self, features: Tensor, like: Tensor) -> Tensor:
        """Resize."""
        resized = tf.image.resize(features, tf.shape(like)[1:3], method="bilinear")
        return tf.cast(resized, features.dtype)

    def compute_output_shape(
        self, features_shape: tuple[int | None, ...], like_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """The size of `like` with the channels of the resized map."""
        return (*like_shape[:3], features_shape[3])


class FusedNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]  # Keras ships no types.
    """Batch normalisation in one kernel. Keras writes it as a dozen operations: a third of a training step on a CPU."""

    def call(self, features: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:  # noqa: ARG002, FBT001 - Keras calls it so.
        """Normalise by the batch in training, else by the running mean and variance."""
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
    """A scaled width as the published networks have it: the nearest multiple of eight, or the next where that takes too much."""
    nearest = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return nearest if nearest >= _LEAST * channels else nearest + _DIVISOR


def _unit_gain(kernel: int) -> Any:
    """He's initialiser for depthwise kernels, each fed by one channel.

    Keras counts all channels: its kernels start tens of times too small, and the first thousand steps shake them.
    """
    return keras.initializers.RandomNormal(stddev=2**0.5 / kernel)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Builds blocks of one network: `folded` without batch normalisation, `momentum` is that of its running means."""

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
        """Convolution, normalisation, activation; SAME padding. Layers `name.conv` and `name.norm`."""
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
        """One kernel×kernel filter a channel, normalisation, activation; SAME padding."""
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
        narrowed: int,
        activation: str = "relu",
        gate: str = "hard_sigmoid",
        splits: int = 0,
    ) -> Tensor:
        """Scale each channel by a gate computed from all channels' means (Hu et al. 2018).

        `narrowed`: the channels between; the activations by default are MobileNetV3's.
        """
        means = PooledPhases(splits, name=f"{name}.pool")(features)
        few = keras.layers.Conv2D(narrowed, 1, activation=activation, name=f"{name}.squeeze")(means)
        gates = keras.layers.Conv2D(features.shape[-1], 1, activation=gate, name=f"{name}.excite")(few)
        return keras.layers.Multiply(name=f"{name}.scale")([features, gates])

    def _normalised(self, features: Tensor, name: str, activation: str | None) -> Tensor:
        if not self.folded:
            features = FusedNormalization(momentum=self.momentum, epsilon=EPSILON, name=f"{name}.norm")(features)
        if activation is not None:
            features = keras.layers.Activation(activation, name=f"{name}.{activation}")(features)
        return features
