"""One network being trained: the loss, the step, the schedule, the running mean of the weights."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.architectures.networks import Network
from modelling.evaluation.confusion import Confusion
from modelling.frameworks import tf
from modelling.training.crops import Batch
from modelling.training.weights import Weights, variables

Loss = Callable[[Any, Any], Any]  # What the network gives and the truth, both of a batch, to one number.

_LARGEST_GRADIENT = 5.0  # Norm over all weights; a larger one is scaled down to it.


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """How fast to learn. The rate rises to its peak, then falls along a cosine to nothing."""

    peak_rate: float
    warm_up: float = 0.03  # The share of the training in which the rate rises.

    def rate(self, progress: float) -> float:
        """The learning rate where `progress` (0 to 1) of the training is done."""
        if progress < self.warm_up:
            return self.peak_rate * (0.02 + 0.98 * progress / self.warm_up)
        fallen = (progress - self.warm_up) / (1 - self.warm_up)
        return self.peak_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, fallen)))


class Trainer:
    """One network being trained. `loss`: of what the network gives and the truth of a batch, one number."""

    def __init__(
        self,
        network: Network,
        schedule: LearningRateSchedule,
        loss: Loss,
        *,
        normalise_by_batch: bool = True,
    ) -> None:
        self.network = network
        self.schedule = schedule
        self.step = 0
        self._normalise_by_batch = normalise_by_batch
        self._adam = [
            (tf.Variable(tf.zeros_like(each.value)), tf.Variable(tf.zeros_like(each.value)))
            for each in network.trainable_variables
        ]
        self._rate = tf.Variable(0.0)
        self._loss = loss
        self._variables = variables(network)
        self._mean = {name: tf.Variable(variable.value, trainable=False) for name, variable in self._variables.items()}
        self._run = tf.function(self._one_step, autograph=False)

    def train_on(self, batch: tuple[npt.NDArray[np.uint8], Any], progress: float) -> float:
        """Make one step where `progress` (0 to 1) of the training is done; returns its loss.

        `batch`: pictures B×H×W×3 uint8 RGB, and the truth that the loss takes.
        """
        self._rate.assign(self.schedule.rate(progress))
        # Early on the mean must forget fast, or it would remember the start.
        keep = min(0.998, (1 + self.step) / (10 + self.step))
        self.step += 1
        return float(self._run(*batch, tf.constant(keep, tf.float32), tf.constant(self.step, tf.float32)))

    def mean_weights(self) -> Weights:
        """The running mean of the weights over the last five hundred steps: what is evaluated and shipped."""
        return {name: np.array(value, np.float32) for name, value in self._mean.items()}

    def _one_step(self, pictures: Any, truth: Any, keep: Any, count: Any) -> Any:
        with tf.GradientTape() as tape:
            given = self.network(tf.cast(pictures, tf.float32) * (1 / 127.5) - 1.0, training=self._normalise_by_batch)
            loss = self._loss(given, truth)
        trainable = [variable.value for variable in self.network.trainable_variables]
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, trainable), _LARGEST_GRADIENT)
        self._apply_adam(trainable, gradients, count)
        for name, mean in self._mean.items():
            mean.assign_sub((mean - self._variables[name].value) * (1 - keep))
        return loss

    def _apply_adam(self, trainable: list[Any], gradients: list[Any], count: Any) -> None:
        """One step of Adam (Kingma and Ba 2015), one operation a variable: Keras's takes a dozen, a tenth of a step."""
        first, second = tf.constant(0.9), tf.constant(0.99)
        for variable, gradient, (mean, square) in zip(trainable, gradients, self._adam, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=first**count,
                beta2_power=second**count,
                lr=self._rate,
                beta1=first,
                beta2=second,
                epsilon=1e-7,
                grad=gradient,
            )


def segmentation_loss(class_weights: npt.NDArray[np.float32]) -> Loss:
    """Weighted cross-entropy plus soft Dice, on every second row and column from a random one.

    `class_weights`: how much a pixel of each class counts. Each pixel counts in a quarter of the steps, at a quarter of
    the cost. Dice is averaged over the classes in the batch, so that a class of few pixels weighs as much as the road.
    """
    weight_of = tf.constant(class_weights)

    def loss(scores: Any, labels: Any) -> Any:
        start = tf.random.uniform([2], 0, 2, tf.int32)
        classes = scores.shape[-1]
        scores = tf.reshape(scores[:, start[0] :: 2, start[1] :: 2], [-1, classes])
        labels = tf.reshape(labels[:, start[0] :: 2, start[1] :: 2], [-1])
        truth = tf.one_hot(labels, classes)
        weights = tf.gather(weight_of, tf.cast(labels, tf.int32))
        entropy = tf.nn.softmax_cross_entropy_with_logits(truth, scores)
        entropy = tf.reduce_sum(entropy * weights) / tf.reduce_sum(weights)
        shares = tf.nn.softmax(scores)
        area = tf.reduce_sum(truth, axis=0)
        both = tf.reduce_sum(shares * truth, axis=0)
        dice = 1 - (2 * both + 1) / (tf.reduce_sum(shares, axis=0) + area + 1)
        present = tf.cast(area > 0, tf.float32)
        return entropy + tf.reduce_sum(dice * present) / tf.reduce_sum(present)

    return loss


def evaluate(network: Network, frames: Iterable[Batch], classes: int) -> Confusion:
    """What a network makes of whole frames: pictures B×H×W×3 uint8 RGB and labels B×H×W."""
    confusion = Confusion.empty(classes)

    def predict(pictures: Any) -> Any:
        scores = network(tf.cast(pictures, tf.float32) * (1 / 127.5) - 1.0, training=False)
        return tf.cast(tf.argmax(scores, axis=-1), tf.uint8)

    run = tf.function(predict, autograph=False)
    for pictures, labels in frames:
        confusion = confusion.with_masks(labels, run(pictures).numpy())
    return confusion
