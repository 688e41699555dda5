from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.runtime import tf
from modelling.conversion.conversion_graph import fold_constants
from modelling.conversion.dilation import with_dilated_convolutions

SPLIT_OPERATIONS = {"SpaceToBatchND", "BatchToSpaceND", "Tile"}


def _graph(network: Any) -> Any:
    """Returns a GraphDef from `input`, 1×10×13×4, to `output`, with folded constants."""
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(network(tf.compat.v1.placeholder(tf.float32, (1, 10, 13, 4), "input")), "output")
    return fold_constants(graph.as_graph_def(), ["input", "output"])


def _kernel(height: int, width: int, channels: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(height, width, 4, channels)).astype(np.float32)


def _run(graph: Any) -> Any:
    """Returns the output for a random input."""
    whole = tf.Graph()
    with whole.as_default():
        tf.import_graph_def(graph, name="")
    features = np.random.default_rng(1).normal(size=(1, 10, 13, 4)).astype(np.float32)
    with tf.compat.v1.Session(graph=whole) as session:
        return session.run("output:0", {"input:0": features})


def _split(x: Any, rows: int, columns: int) -> Any:
    return tf.space_to_batch(x, [2, 2], [[0, rows], [0, columns]])


def _join(x: Any) -> Any:
    return tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]])


def _nested(x: Any) -> Any:
    """Two nested splits as in the road models, with a convolution and a gate in each; 13 columns are padded to 16."""
    for rows, columns in ((2, 3), (0, 0)):
        x = _split(x, rows, columns)
        x = tf.nn.relu(tf.nn.conv2d(x, _kernel(3, 3, 4, rows), 1, "SAME") + 0.5)
        phases = 4 if rows else 16
        means = tf.reduce_mean(x, [1, 2], keepdims=True)
        means = tf.tile(tf.reduce_mean(tf.reshape(means, [phases, -1, 1, 1, 4]), 0), [phases, 1, 1, 1])
        x *= tf.sigmoid(tf.nn.conv2d(means, _kernel(1, 1, 4, 7), 1, "SAME"))
    return _join(_join(x))[:, :10, :13]


def test_dilated_convolutions_give_the_same_output_as_phases() -> None:
    """Both levels of the nested splits become dilations, of 2 and 4."""
    graph = _graph(_nested)
    dilated = with_dilated_convolutions(graph)
    assert not {node.op for node in dilated.node} & SPLIT_OPERATIONS
    dilations = {tuple(node.attr["dilations"].list.i) for node in dilated.node if node.op == "Conv2D"}
    assert {(1, 2, 2, 1), (1, 4, 4, 1)} <= dilations
    np.testing.assert_allclose(_run(dilated), _run(graph), rtol=1e-4, atol=1e-4)


def test_the_built_in_network_is_rewritten() -> None:
    """The rewriting was made for this network."""
    graph = fold_constants(read_graph(Path("models/road-small/model.pb")), ["input", "prediction"])
    assert "SpaceToBatchND" in {node.op for node in graph.node}
    assert not {node.op for node in with_dilated_convolutions(graph).node} & SPLIT_OPERATIONS


def _max_pool(x: Any) -> Any:
    return _join(tf.nn.max_pool2d(_split(x, 0, 1), 2, 1, "SAME"))


def _even_kernel(x: Any) -> Any:
    return _join(tf.nn.conv2d(_split(x, 0, 1), _kernel(2, 2, 4, 3), 1, "SAME"))


def _mean_per_phase(x: Any) -> Any:
    phases = _split(x, 0, 1)
    return _join(phases * tf.reduce_mean(phases, [1, 2], keepdims=True))


def _without_join(x: Any) -> Any:
    return tf.reduce_max(_split(x, 0, 1), 0)


@pytest.mark.parametrize("network", [_max_pool, _even_kernel, _mean_per_phase, _without_join])
def test_an_unsupported_operation_on_phases_leaves_the_graph_unchanged(network: Any) -> None:
    """These operations have no equivalent on the whole map."""
    graph = _graph(network)
    assert with_dilated_convolutions(graph) is graph
