"""The networks: sizes, shapes, and the two tricks that make them quick, held to their definitions."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from modelling.architectures.blocks import BatchToSpace, FusedNormalization, PooledPhases, SpaceToBatch
from modelling.architectures.classifier import mobilenet_v3_large
from modelling.architectures.efficientnet import efficientnet
from modelling.frameworks import keras, tf
from modelling.recipes import RECIPES, recipe
from modelling.training.weights import assign, fold, unfold, variables, weights_of
from shared.errors import UnknownNameError


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture as a network takes it: 1×H×W×3 float32, -1..1."""
    return np.random.default_rng(seed).uniform(-1, 1, (1, height, width, 3)).astype(np.float32)


@cache
def folded_network(name: str) -> Any:
    """A recipe's network as it ships, built once; a test that needs certain weights sets them."""
    return recipe(name).network(folded=True)


@pytest.mark.parametrize(
    ("name", "megabytes"), [("road-small", 4.6), ("road-large", 8.6), ("street-deeplab", 49.7), ("street-lite", 29.4)]
)
def test_a_network_is_of_the_size_class_of_the_one_it_stands_for(name: str, megabytes: float) -> None:
    """Times measured with another size would say nothing about the systems that Skylane is compared with."""
    assert folded_network(name).count_params() * 4 / 1e6 == pytest.approx(megabytes, rel=0.08)


@pytest.mark.parametrize(("name", "millions"), [("efficientnet-b7-600", 66.66), ("mobilenet-v3-large-224", 5.51)])
def test_a_classifier_has_as_many_weights_as_its_authors_tell(name: str, millions: float) -> None:
    """Serving software is compared by them: with another network the comparison would be another."""
    network = recipe(name).network(folded=False)
    assert network.count_params() / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(
    ("ours", "theirs", "side"),
    [
        (partial(efficientnet, 10, width=1.0, depth=1.0), "EfficientNetB0", 70),
        (partial(mobilenet_v3_large, 10), "MobileNetV3Large", 64),
    ],
)
def test_a_published_network_answers_as_the_public_code_does(ours: Callable[..., Any], theirs: str, side: int) -> None:
    """A count of weights does not see a wrong stride, activation or order; the same weights in Keras's own code do.

    B7 is B0 with other widths and repeats, which are two numbers.
    """
    keras.utils.set_random_seed(7)
    options = {"include_preprocessing": False} if theirs.startswith("Mobile") else {}
    public = getattr(keras.applications, theirs)(
        weights=None, classes=10, input_shape=(side, side, 3), classifier_activation=None, **options
    )
    network = ours(folded=False)
    given = [each for layer in public.layers if layer.name != "normalization" for each in layer.weights]
    wanted = variables(network)
    assert len(given) == len(wanted)
    generator = np.random.default_rng(8)
    for mine, other in zip(wanted.values(), given, strict=True):
        if mine.path.rpartition("/")[2] in ("moving_variance", "gamma"):  # At their first values they hide a slip.
            other.assign(generator.uniform(0.5, 1.5, other.shape))
        mine.assign(np.reshape(other, mine.shape))
    pixels = picture(side, side)
    expected = public((pixels + 1) * 127.5 if theirs.startswith("Efficient") else pixels, training=False).numpy()
    if theirs.startswith("Efficient"):  # Keras scales to 0..1 in the network.
        pixels = (pixels + 1) / 2
    folded = ours(folded=True)
    assign(folded, fold(weights_of(network)), "the test")
    for answer in (network(pixels, training=False), folded(pixels)):
        np.testing.assert_allclose(answer, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name, made in RECIPES.items() if not made.colours])
def test_scores_have_the_size_of_the_picture_even_where_no_stride_divides_it(name: str) -> None:
    """968 is no multiple of 32: a mask a pixel short would not lie on its frame."""
    scores = folded_network(name)(picture(72, 104))
    assert scores.shape == (1, 72, 104, len(recipe(name).class_names))


@pytest.mark.parametrize("rate", [2, 4])
def test_an_undilated_filter_on_phases_is_the_dilated_filter_on_the_whole_map(rate: int) -> None:
    """The trunk's output stride of 8 rests on it."""
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
    """A map of odd size must come back whole, and in its place."""
    features = np.arange(2 * 7 * 9 * 3, dtype=np.float32).reshape(2, 7, 9, 3)
    phases = SpaceToBatch(2)(SpaceToBatch(4)(features))
    assert phases.shape == (32, 2, 3, 3)
    np.testing.assert_array_equal(BatchToSpace(2)(phases, features), features)


def test_pooled_phases_are_the_means_of_each_whole_picture() -> None:
    """Gates computed a phase at a time would differ between neighbouring pixels and mix the pictures of a batch."""
    features = np.random.default_rng(2).normal(size=(3, 8, 8, 4)).astype(np.float32)
    pooled = PooledPhases(1)(SpaceToBatch()(features)).numpy()
    for phase in np.split(pooled, 4):
        np.testing.assert_allclose(phase[:, 0, 0], features.mean(axis=(1, 2)), atol=1e-6)


def test_fused_normalisation_learns_and_normalises_as_keras_does() -> None:
    """It replaces Keras's own for speed only."""
    features = np.random.default_rng(3).normal(3, 2, size=(2, 6, 6, 4)).astype(np.float32)
    fused, plain = FusedNormalization(momentum=0.9), keras.layers.BatchNormalization(momentum=0.9)
    np.testing.assert_allclose(fused(features, training=True), plain(features, training=True), atol=1e-4)
    np.testing.assert_allclose(fused.moving_mean, plain.moving_mean, atol=1e-5)
    # The kernel divides by n - 1 where Keras divides by n.
    np.testing.assert_allclose(fused.moving_variance, plain.moving_variance, rtol=0.02)
    np.testing.assert_allclose(fused(features, training=False), plain(features, training=False), atol=0.05)


@pytest.mark.parametrize("name", [name for name, made in RECIPES.items() if made.height != made.width])
def test_folding_keeps_what_the_network_answers(name: str) -> None:
    """What ships is folded: a slip there would ship another network than the one that was validated."""
    keras.utils.set_random_seed(4)
    trained = recipe(name).network(folded=False)
    generator = np.random.default_rng(5)
    for key, variable in variables(trained).items():  # As after training: no statistic at its first value.
        if ".norm." in key:
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    folded = folded_network(name)
    assign(folded, fold(weights_of(trained)), "the test")
    pixels = picture(64, 96)
    for got, expected in zip(_maps(folded(pixels)), _maps(trained(pixels, training=False)), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-4 * np.abs(expected).max())


def _maps(given: Any) -> list[np.ndarray]:
    """What a network gives, one map or several."""
    return [each.numpy() for each in (given if isinstance(given, list | tuple) else [given])]


def test_unfolded_weights_answer_as_the_folded_ones_do() -> None:
    """Only folded weights ship: a training that goes on from them must start where they stand."""
    made = recipe("road-small")
    keras.utils.set_random_seed(6)
    folded, opened = made.network(folded=True), made.network(folded=False)
    assign(opened, unfold(weights_of(folded), opened), "the test")
    pixels = picture(64, 96)
    np.testing.assert_allclose(opened(pixels, training=False).numpy(), folded(pixels).numpy(), atol=1e-4)


def test_an_unknown_model_is_told_the_nearest_names() -> None:
    """A typing error should cost one look."""
    with pytest.raises(UnknownNameError, match="road-small"):
        recipe("road-smal")
