"""The networks: sizes, output shapes, agreement with the published code, dilation by phases, and folding of batch normalisation into weights."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from modelling.architectures.blocks import BatchToSpace, FusedNormalization, PooledPhases, SpaceToBatch
from modelling.architectures.networks import efficientnet, mobilenet_v3_large
from modelling.architectures.weights import assign, variables, weights_of
from modelling.frameworks import keras, tf
from modelling.recipes import RECIPES, recipe
from shared.errors import UnknownNameError
from training.weights import fold, unfold


def random_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Returns a network's input: 1×H×W×3 float32, -1..1."""
    return np.random.default_rng(seed).uniform(-1, 1, (1, height, width, 3)).astype(np.float32)


@cache
def folded_network(name: str) -> Any:
    """Returns a recipe's network with batch normalisation folded into its weights, built once for all tests."""
    return recipe(name).network(folded=True)


@pytest.mark.parametrize(
    ("name", "megabytes"), [("road-small", 4.6), ("road-large", 8.6), ("street-deeplab", 49.7), ("street-lite", 29.4)]
)
def test_a_network_has_the_size_of_the_one_it_represents(name: str, megabytes: float) -> None:
    """The networks represent those of other systems in performance comparisons."""
    assert folded_network(name).count_params() * 4 / 1e6 == pytest.approx(megabytes, rel=0.08)


def test_a_classifier_has_the_published_number_of_weights() -> None:
    """B7 is B0, which is compared below, with two other factors."""
    network = recipe("efficientnet-b7-600").network(folded=False)
    assert network.count_params() / 1e6 == pytest.approx(66.66, abs=0.005)


@pytest.mark.parametrize(
    ("ours", "theirs", "side"),
    [
        (partial(efficientnet, 10, width=1.0, depth=1.0), "EfficientNetB0", 70),
        (partial(mobilenet_v3_large, 10), "MobileNetV3Large", 64),
    ],
)
def test_a_published_network_gives_the_outputs_of_keras_applications(
    ours: Callable[..., Any], theirs: str, side: int
) -> None:
    """With equal weights, a wrong stride, activation or order changes the output."""
    keras.utils.set_random_seed(7)
    options = {"include_preprocessing": False} if theirs.startswith("Mobile") else {}
    public = getattr(keras.applications, theirs)(
        weights=None, classes=10, input_shape=(side, side, 3), classifier_activation=None, **options
    )
    network = ours(folded=False)
    public_weights = [each for layer in public.layers if layer.name != "normalization" for each in layer.weights]
    own_weights = variables(network)
    assert len(public_weights) == len(own_weights)
    generator = np.random.default_rng(8)
    for own, other in zip(own_weights.values(), public_weights, strict=True):
        if own.path.rpartition("/")[2] in ("moving_variance", "gamma"):  # Their initial values of 1 would hide errors.
            other.assign(generator.uniform(0.5, 1.5, other.shape))
        own.assign(np.reshape(other, own.shape))
    pixels = random_image(side, side)
    expected = public((pixels + 1) * 127.5 if theirs.startswith("Efficient") else pixels, training=False).numpy()
    if theirs.startswith("Efficient"):  # Keras's network scales its input to 0..1.
        pixels = (pixels + 1) / 2
    folded = ours(folded=True)
    assign(folded, fold(weights_of(network)), "the test")
    for output in (network(pixels, training=False), folded(pixels)):
        np.testing.assert_allclose(output, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name, made in RECIPES.items() if not made.colours])
def test_scores_have_the_size_of_an_image_that_no_stride_divides(name: str) -> None:
    """The width of the camera's frames, 968, is not a multiple of 32."""
    scores = folded_network(name)(random_image(72, 104))
    assert scores.shape == (1, 72, 104, len(recipe(name).class_names))


@pytest.mark.parametrize("rate", [2, 4])
def test_a_plain_filter_on_phases_equals_a_dilated_filter_on_the_whole_map(rate: int) -> None:
    """The trunk implements output strides below 32 in this way."""
    generator = np.random.default_rng(1)
    features = generator.normal(size=(2, 12, 16, 5)).astype(np.float32)
    kernel = generator.normal(size=(5, 5, 5, 1)).astype(np.float32)
    dilated = tf.nn.depthwise_conv2d(features, kernel, [1, 1, 1, 1], "SAME", dilations=[rate, rate])

    splits = rate // 2
    phases = features
    for _ in range(splits):
        phases = SpaceToBatch()(phases)
    phases = tf.nn.depthwise_conv2d(phases, kernel, [1, 1, 1, 1], "SAME")
    np.testing.assert_allclose(BatchToSpace(splits)(phases, features), dilated, atol=1e-5)


def test_phases_are_padded_to_the_multiple_and_cropped_again() -> None:
    """A map of odd size is restored exactly."""
    features = np.arange(2 * 7 * 9 * 3, dtype=np.float32).reshape(2, 7, 9, 3)
    phases = SpaceToBatch(2)(SpaceToBatch(4)(features))
    assert phases.shape == (32, 2, 3, 3)
    np.testing.assert_array_equal(BatchToSpace(2)(phases, features), features)


def test_pooled_phases_are_the_means_of_each_whole_image() -> None:
    """Means per phase would differ between neighbouring pixels; the images of a batch must not mix."""
    features = np.random.default_rng(2).normal(size=(3, 8, 8, 4)).astype(np.float32)
    pooled = PooledPhases(1)(SpaceToBatch()(features)).numpy()
    for phase in np.split(pooled, 4):
        np.testing.assert_allclose(phase[:, 0, 0], features.mean(axis=(1, 2)), atol=1e-6)


def test_fused_normalisation_equals_batch_normalisation_of_keras() -> None:
    """Outputs and running statistics are equal; the fused operation is only faster."""
    features = np.random.default_rng(3).normal(3, 2, size=(2, 6, 6, 4)).astype(np.float32)
    fused, plain = FusedNormalization(momentum=0.9), keras.layers.BatchNormalization(momentum=0.9)
    np.testing.assert_allclose(fused(features, training=True), plain(features, training=True), atol=1e-4)
    np.testing.assert_allclose(fused.moving_mean, plain.moving_mean, atol=1e-5)
    # The kernel divides by n - 1 where Keras divides by n.
    np.testing.assert_allclose(fused.moving_variance, plain.moving_variance, rtol=0.02)
    np.testing.assert_allclose(fused(features, training=False), plain(features, training=False), atol=0.05)


@pytest.mark.parametrize("name", ["road-tiny", "road-objects", "street-deeplab", "car-tiny"])
def test_folding_does_not_change_the_output(name: str) -> None:
    """The built-in models are folded after their validation."""
    keras.utils.set_random_seed(4)
    trained = recipe(name).network(folded=False)
    generator = np.random.default_rng(5)
    for key, variable in variables(trained).items():  # Initial statistics would hide errors.
        if ".norm." in key:
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    folded = folded_network(name)
    assign(folded, fold(weights_of(trained)), "the test")
    pixels = random_image(64, 96)
    for output, expected in zip(_maps(folded(pixels)), _maps(trained(pixels, training=False)), strict=True):
        np.testing.assert_allclose(output, expected, atol=2e-4 * np.abs(expected).max())


def _maps(output: Any) -> list[np.ndarray]:
    """Returns the one or several maps of a network's output."""
    return [each.numpy() for each in (output if isinstance(output, list | tuple) else [output])]


def test_unfolding_does_not_change_the_output() -> None:
    """A training that starts from the built-in weights, which are folded, starts with their accuracy."""
    small = recipe("road-small")
    keras.utils.set_random_seed(6)
    folded, unfolded = small.network(folded=True), small.network(folded=False)
    assign(unfolded, unfold(weights_of(folded), unfolded), "the test")
    pixels = random_image(64, 96)
    np.testing.assert_allclose(unfolded(pixels, training=False).numpy(), folded(pixels).numpy(), atol=1e-4)


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    """A typo is easy to correct."""
    with pytest.raises(UnknownNameError, match="road-small"):
        recipe("road-smal")
