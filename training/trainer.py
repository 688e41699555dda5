"""The training step, the learning rate schedule, the segmentation loss and the validation of a network."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.architectures.networks import Network
from modelling.architectures.weights import Weights, variables
from modelling.evaluation.metrics import Confusion
from modelling.frameworks import tf
from training.crops import Batch

Loss = Callable[[Any, Any], Any]  # Takes the network's output and the truth of a batch; returns a scalar.

_MAX_GRADIENT_NORM = 5.0  # Over all weights; larger gradients are scaled down.


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The state of a training after a step."""

    step: int
    done: float  # The finished share of the training, 0 to 1.
    loss: float
    mean_iou: float | None = None  # The mean IoU of the last validation of a segmentation.


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """A learning rate that rises linearly to its peak and then falls along a cosine to 0."""

    peak_rate: float
    warm_up: float = 0.03  # The share of the training in which the rate rises.

    def rate(self, done: float) -> float:
        """Returns the learning rate for the finished share of the training, 0 to 1."""
        if done < self.warm_up:
            return self.peak_rate * (0.02 + 0.98 * done / self.warm_up)
        decay = (done - self.warm_up) / (1 - self.warm_up)
        return self.peak_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, decay)))


class Trainer:
    """Trains one network with Adam and keeps a running mean of its weights."""

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

    def train_on(self, batch: tuple[npt.NDArray[np.uint8], Any], done: float) -> float:
        """Makes one step and returns its loss.

        Args:
            batch: Images B×H×W×3 uint8 RGB, and the truth for the loss.
            done: The finished share of the training, 0 to 1.
        """
        self._rate.assign(self.schedule.rate(done))
        # The mean must forget the initial weights quickly.
        keep = min(0.998, (1 + self.step) / (10 + self.step))
        self.step += 1
        return float(self._run(*batch, tf.constant(keep, tf.float32), tf.constant(self.step, tf.float32)))

    def mean_weights(self) -> Weights:
        """Returns the running mean of the weights over about 500 steps, which is validated and saved."""
        return {name: np.array(value, np.float32) for name, value in self._mean.items()}

    def _one_step(self, images: Any, truth: Any, keep: Any, count: Any) -> Any:
        with tf.GradientTape() as tape:
            output = self.network(tf.cast(images, tf.float32) * (1 / 127.5) - 1.0, training=self._normalise_by_batch)
            loss = self._loss(output, truth)
        trainable = [variable.value for variable in self.network.trainable_variables]
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, trainable), _MAX_GRADIENT_NORM)
        self._apply_adam(trainable, gradients, count)
        for name, mean in self._mean.items():
            mean.assign_sub((mean - self._variables[name].value) * (1 - keep))
        return loss

    def _apply_adam(self, trainable: list[Any], gradients: list[Any], count: Any) -> None:
        """Applies Adam (Kingma and Ba 2015) with one operation per variable; Keras uses a dozen, which take a tenth of a step's time."""
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
    """Returns weighted cross-entropy plus soft Dice, on every second row and column from a random start.

    Each pixel is used in a quarter of the steps, at a quarter of the cost. Dice is averaged over the classes in the batch,
    so a class with few pixels has the same weight as the road. `class_weights` are the weights of a pixel by class.
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


def validate(network: Network, frames: Iterable[Batch], classes: int) -> Confusion:
    """Returns the confusion of a network on whole frames: images B×H×W×3 uint8 RGB and labels B×H×W."""
    confusion = Confusion.empty(classes)

    def predict(images: Any) -> Any:
        scores = network(tf.cast(images, tf.float32) * (1 / 127.5) - 1.0, training=False)
        return tf.cast(tf.argmax(scores, axis=-1), tf.uint8)

    run = tf.function(predict, autograph=False)
    for images, labels in frames:
        confusion = confusion.with_masks(labels, run(images).numpy())
    return confusion
