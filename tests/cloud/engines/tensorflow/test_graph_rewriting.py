from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.tensorflow.graph_rewriting import defer_widening_layers, with_free_batch
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.runtime import check_precision, tf
from shared.inference.engine import DeviceError, InferenceError
from shared.inference.model import warmup_images
from shared.models.manifest import Placement, Precision

_REPOSITORY = Path(__file__).resolve().parents[4]
_HEIGHT, _WIDTH = 8, 12


def _space_to_batch_graph(*, channels: int, second_reader: bool = False, varies_by_pixel: bool = False) -> Any:
    """Returns a graph of SpaceToBatch, a 1×1 convolution with an activation, BatchToSpace, and a crop.

    Args:
        channels: The output channels of the convolution.
        second_reader: Another operation reads the layer before the join.
        varies_by_pixel: The layer adds a constant that differs by pixel.
    """
    random = np.random.default_rng(3)
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        split = tf.space_to_batch(tf.cast(images, tf.float32) / 255, [2, 2], [[0, 0], [0, 0]])
        weights = random.normal(size=(1, 1, 3, channels)).astype(np.float32)
        wide = tf.nn.bias_add(tf.nn.conv2d(split, weights, 1, "SAME"), random.normal(size=channels).astype(np.float32))
        swish = wide * tf.nn.relu6(wide + 3.0) / 6.0
        if varies_by_pixel:
            swish += random.normal(size=(1, _HEIGHT // 2, _WIDTH // 2, 1)).astype(np.float32)
        joined = tf.batch_to_space(swish, [2, 2], [[0, 0], [0, 0]])[:, :, :10]
        scores = tf.reduce_sum(joined, -1) + (tf.reduce_mean(swish) if second_reader else 0.0)
        tf.cast(scores * 10, tf.uint8, name="prediction")
    return graph.as_graph_def()


def _labels(definition: Any, images: npt.NDArray[np.uint8]) -> Any:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        return tf.compat.v1.Session(graph=graph).run("prediction:0", {"input:0": images})


def test_a_widening_layer_is_moved_after_the_join_with_equal_labels() -> None:
    """The move saves memory bandwidth."""
    graph = _space_to_batch_graph(channels=16)
    moved = defer_widening_layers(graph, ["prediction:0"])
    (join,) = [node for node in moved.node if node.op == "BatchToSpaceND"]
    assert join.input[0].startswith("SpaceToBatchND")
    images = warmup_images(_HEIGHT, _WIDTH, 1)
    np.testing.assert_array_equal(_labels(moved, images), _labels(graph, images))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"channels": 2}, id="fewer channels"),
        pytest.param({"channels": 16, "second_reader": True}, id="second reader"),
        pytest.param({"channels": 16, "varies_by_pixel": True}, id="varies by pixel"),
    ],
)
def test_a_layer_that_cannot_or_should_not_be_moved_stays(options: dict[str, Any]) -> None:
    """A move would transfer more bytes, or change the result."""
    graph = _space_to_batch_graph(**options)
    assert defer_widening_layers(graph, ["prediction:0"]) == graph


def test_the_built_in_graph_is_rewritten_with_equal_labels() -> None:
    """The rewriting was made for this graph."""
    graph = read_graph(_REPOSITORY / "models" / "road-small" / "model.pb")
    moved = defer_widening_layers(graph, ["prediction:0"])
    assert moved != graph
    images = warmup_images(608, 968, 1)
    np.testing.assert_array_equal(_labels(moved, images), _labels(graph, images))


def _reshaping_graph() -> Any:
    """Returns a graph that flattens its images by a constant shape with a batch size of 1, and restores their shape."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        rows = tf.reshape(tf.cast(images, tf.int32), [1, _HEIGHT * _WIDTH, 3])
        tf.reshape(tf.cast(rows[..., 0] > 100, tf.uint8), [1, _HEIGHT, _WIDTH], name="prediction")
    return graph.as_graph_def()


_MANIFEST: dict[str, Any] = {"input": {"dtype": "uint8"}, "batching": {"max_size": 3}}


def test_a_batch_size_in_constant_shapes_is_freed(workshop: Any, pictures: Any) -> None:
    """Exporters write a batch size of 1 into the shapes of Reshape operations."""
    workshop.add("m", _reshaping_graph(), **_MANIFEST)
    with workshop.open("m") as model:
        assert model.max_batch_size == 3
        np.testing.assert_array_equal(model.predict(pictures), pictures[..., 0] > 100)


def test_a_graph_that_mixes_a_batch_keeps_its_fixed_batch_size(workshop: Any, pictures: Any) -> None:
    """With batches, a vehicle would get a mask that depends on another vehicle's image; the description says so."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        brightness = tf.reduce_mean(tf.cast(images[..., 0], tf.float32))  # The mean includes the batch.
        tf.cast(tf.cast(images[..., 0], tf.float32) > brightness, tf.uint8, name="prediction")
    workshop.add("m", graph.as_graph_def(), **_MANIFEST)
    with workshop.open("m") as model:
        assert model.max_batch_size == 1
        assert "fixed batch of 1, run one by one" in model.describe()
        expected = [image[..., 0] > image[..., 0].mean() for image in pictures]
        np.testing.assert_array_equal(model.predict(pictures), expected)


def test_freeing_the_batch_size_does_not_change_the_original_graph() -> None:
    """The engine falls back to the original."""
    graph = _reshaping_graph()
    before = graph.SerializeToString(deterministic=True)
    assert with_free_batch(graph, "input:0", reshapes=True) != graph
    assert graph.SerializeToString(deterministic=True) == before


def test_the_warm_up_reports_active_dropout(workshop: Any) -> None:
    """The operator must see in the log that the model gives different masks for the same image."""
    workshop.add("m", workshop.graph(lambda scores: tf.argmax(tf.nn.dropout(scores, 0.5), -1)))
    with workshop.open("m") as model:
        assert model.warnings == ()
        model.warm_up(3)
        assert "dropout or noise is active" in model.warnings[0]
        assert "WARNING: the same image gave two different results" in model.describe()


def test_nan_scores_raise_an_inference_error(workshop: Any, pictures: Any) -> None:
    """Arg max would convert NaN to a valid class id."""
    workshop.add("m", workshop.graph(tf.math.log), output={"kind": "scores"})
    with workshop.open("m") as model, pytest.raises(InferenceError, match="returned NaN among its scores"):
        model.predict(pictures)


def test_an_unsupported_precision_is_refused() -> None:
    """A measurement of another precision must not silently run fp32."""
    with pytest.raises(DeviceError, match="TensorFlow computes in fp32 or bf16 there, not in int8"):
        check_precision(Precision.INT8, "cpu")
    with pytest.raises(DeviceError, match="fp32 or fp16 there, not in bf16"):
        check_precision(Precision.BF16, "gpu:0")


def test_bf16_is_reported_and_gives_nearly_equal_labels(workshop: Any, pictures: Any) -> None:
    """Labels may differ at edges only."""
    try:
        check_precision(Precision.BF16, "cpu")
    except DeviceError as error:
        pytest.skip(str(error))
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, batching={"max_size": 3})
    with workshop.open("m", Placement(precision=Precision.BF16)) as model:
        assert model.precision is Precision.BF16
        assert np.mean(model.predict(pictures) == workshop.direct(pictures.astype(np.float32))) > 0.95
