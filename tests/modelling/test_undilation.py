from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.library import tf
from modelling.conversion.conversion_graph import folded
from modelling.conversion.dilation import undilated


def _graph(answer: Any) -> Any:
    """A GraphDef from `picture`, 1×10×13×4, to `answer`."""
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(answer(tf.compat.v1.placeholder(tf.float32, (1, 10, 13, 4), "picture")), "answer")
    return graph.as_graph_def()


def _kernel(height: int, width: int, channels: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(height, width, 4, channels)).astype(np.float32)


def _run(graph: Any) -> Any:
    """The answer to a picture of noise."""
    whole = tf.Graph()
    with whole.as_default():
        tf.import_graph_def(graph, name="")
    picture = np.random.default_rng(1).normal(size=(1, 10, 13, 4)).astype(np.float32)
    with tf.compat.v1.Session(graph=whole) as session:
        return session.run("answer:0", {"picture:0": picture})


def _split(x: Any, rows: int, columns: int) -> Any:
    return tf.space_to_batch(x, [2, 2], [[0, rows], [0, columns]])


def _join(x: Any) -> Any:
    return tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]])


def _nested(x: Any) -> Any:
    """As the road models: two cuts, a convolution and a gate in each, two joins and a crop; 13 columns end as 16."""
    for rows, columns in ((2, 3), (0, 0)):
        x = _split(x, rows, columns)
        x = tf.nn.relu(tf.nn.conv2d(x, _kernel(3, 3, 4, rows), 1, "SAME") + 0.5)
        phases = 4 if rows else 16
        means = tf.reduce_mean(x, [1, 2], keepdims=True)
        means = tf.tile(tf.reduce_mean(tf.reshape(means, [phases, -1, 1, 1, 4]), 0), [phases, 1, 1, 1])
        x *= tf.sigmoid(tf.nn.conv2d(means, _kernel(1, 1, 4, 7), 1, "SAME"))
    return _join(_join(x))[:, :10, :13]


def test_phases_and_dilated_convolutions_are_the_same_function() -> None:
    """A conversion that changes what a network computes is worth nothing, however fast the file is."""
    graph = folded(_graph(_nested), ["picture", "answer"])
    plain = undilated(graph)
    operations = {node.op for node in plain.node}
    assert not operations & {"SpaceToBatchND", "BatchToSpaceND", "Tile"}
    dilations = {tuple(node.attr["dilations"].list.i) for node in plain.node if node.op == "Conv2D"}
    assert {(1, 2, 2, 1), (1, 4, 4, 1)} <= dilations
    np.testing.assert_allclose(_run(plain), _run(graph), rtol=1e-4, atol=1e-4)


def test_the_road_model_loses_its_phases() -> None:
    """The shipped network is what this is for."""
    graph = folded(read_graph(Path("models/road-small/model.pb")), ["input", "prediction"])
    assert "SpaceToBatchND" in {node.op for node in graph.node}
    assert not {node.op for node in undilated(graph).node} & {"SpaceToBatchND", "BatchToSpaceND", "Tile"}


def _pooled(x: Any) -> Any:
    return _join(tf.nn.max_pool2d(_split(x, 0, 1), 2, 1, "SAME"))


def _even(x: Any) -> Any:
    return _join(tf.nn.conv2d(_split(x, 0, 1), _kernel(2, 2, 4, 3), 1, "SAME"))


def _by_phase(x: Any) -> Any:
    phases = _split(x, 0, 1)
    return _join(phases * tf.reduce_mean(phases, [1, 2], keepdims=True))


def _left_open(x: Any) -> Any:
    return tf.reduce_max(_split(x, 0, 1), 0)


@pytest.mark.parametrize("network", [_pooled, _even, _by_phase, _left_open])
def test_what_is_no_function_of_the_whole_map_stays_as_it_is(network: Any) -> None:
    """A pool, an even kernel, a mean of each phase alone: a rewriting that is nearly right gives nearly right masks."""
    graph = folded(_graph(network), ["picture", "answer"])
    assert undilated(graph) is graph
