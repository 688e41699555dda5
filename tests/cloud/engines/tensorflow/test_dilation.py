"""Graphs run in OpenVINO, because TensorFlow's CPU kernels have no dilated depthwise convolutions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.runtime import core
from cloud.engines.tensorflow.dilation import fold_constants, with_dilated_convolutions
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.runtime import tf

SPLIT_OPERATIONS = {"SpaceToBatchND", "BatchToSpaceND", "Tile"}
CHANNELS, ROWS, COLUMNS = 4, 10, 13


def _graph(network: Any, batch: int | None = 1) -> Any:
    """Returns a GraphDef from `input`, N×10×13×4, to `output`, with folded constants."""
    graph = tf.Graph()
    with graph.as_default():
        features = tf.compat.v1.placeholder(tf.float32, (batch, ROWS, COLUMNS, CHANNELS), "input")
        tf.identity(network(features), "output")
    return fold_constants(graph.as_graph_def(), ["input", "output"])


def _kernel(height: int, width: int, channels: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(height, width, CHANNELS, channels)).astype(np.float32)


def _run(graph: Any, folder: Path, batch: int = 1) -> Any:
    """Returns the output for a random input."""
    file = folder / "model.pb"
    file.write_bytes(graph.SerializeToString())
    features = np.random.default_rng(1).normal(size=(batch, ROWS, COLUMNS, CHANNELS)).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return np.array(core().compile_model(core().read_model(file), "CPU", config)([features])[0])


def _split(x: Any, rows: int, columns: int) -> Any:
    return tf.space_to_batch(x, [2, 2], [[0, rows], [0, columns]])


def _join(x: Any) -> Any:
    return tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]])


def _within(network: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A network between a split and a join of a map of odd width."""
    # Without `abs`, OpenVINO ignores the padding and dilation of a convolution directly between the two.
    return lambda x: _join(tf.abs(network(tf.abs(_split(x, 0, 1)))))[:, :, :COLUMNS]


def _convolved(x: Any, padding: Any = "SAME", dilation: int = 1) -> Any:
    return tf.nn.conv2d(x, _kernel(3, 3, CHANNELS, 2), 1, padding, dilations=dilation)


def _depthwise(x: Any) -> Any:
    return tf.nn.depthwise_conv2d(x, _kernel(3, 3, 1, 3), [1, 1, 1, 1], "SAME")


def _gated(x: Any, phases: int = 4) -> Any:
    """Scales each channel by its mean over the whole image, as modelling.architectures.blocks does on phases."""
    means = tf.reshape(tf.reduce_mean(x, [1, 2], keepdims=True), [phases, -1, 1, 1, CHANNELS])
    whole = tf.tile(tf.reduce_mean(means, 0), [phases, 1, 1, 1])
    return x * tf.sigmoid(tf.nn.conv2d(whole, _kernel(1, 1, CHANNELS, 7), 1, "SAME"))


def _nested(x: Any) -> Any:
    """Two nested splits as in the road models, with a convolution and a gate in each; 13 columns are padded to 16."""
    for rows, columns in ((2, 3), (0, 0)):
        x = _gated(tf.nn.relu(_convolved(_split(x, rows, columns)) + 0.5), 4 if rows else 16)
    return _join(_join(x))[:, :ROWS, :COLUMNS]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "network",
    [
        _within(_depthwise),
        _within(_convolved),
        # A dilation that spans more than one phase on the whole map.
        _within(lambda x: _convolved(x, "VALID", dilation=2)),
        _within(lambda x: _depthwise(x) + x),
        _within(lambda x: tf.nn.relu(x - np.full((1, 1, 1, CHANNELS), 0.5, np.float32))),
        _within(lambda x: _gated(_depthwise(x))),
        _nested,
    ],
    ids=["depthwise", "same padding", "wider than a phase", "sum", "bias", "gate", "nested"],
)
def test_dilated_convolutions_give_the_same_output_as_phases(network: Any, batch: int, tmp_path: Path) -> None:
    """A changed number would change labels."""
    graph = _graph(network, batch)
    dilated = with_dilated_convolutions(graph, ["output"])
    assert not {node.op for node in dilated.node} & SPLIT_OPERATIONS
    np.testing.assert_allclose(_run(dilated, tmp_path, batch), _run(graph, tmp_path, batch), rtol=1e-4, atol=1e-4)


def test_nested_splits_multiply_the_dilation() -> None:
    """Both levels of the nested splits become dilations, of 2 and 4."""
    dilated = with_dilated_convolutions(_graph(_nested), ["output"])
    dilations = {tuple(node.attr["dilations"].list.i) for node in dilated.node if node.op == "Conv2D"}
    assert {(1, 2, 2, 1), (1, 4, 4, 1)} <= dilations


@pytest.mark.parametrize("batch", [None, 1])
def test_the_padding_of_a_known_size_is_folded(batch: int | None) -> None:
    """The built-in networks compute their padding from the size of a map, and accept any batch."""

    def padded(x: Any) -> Any:
        shape = tf.shape(x)
        return _join(_depthwise(_split(x, -shape[1] % 2, -shape[2] % 2)))[:, : shape[1], : shape[2]]

    dilated = with_dilated_convolutions(_graph(padded, batch), ["output"])
    assert not {node.op for node in dilated.node} & {*SPLIT_OPERATIONS, "Shape"}


def test_the_built_in_network_is_rewritten() -> None:
    """The rewriting was made for this network."""
    graph = fold_constants(read_graph(Path("models/road-small/model.pb")), ["input", "prediction"])
    assert "SpaceToBatchND" in {node.op for node in graph.node}
    assert not {node.op for node in with_dilated_convolutions(graph, ["prediction"]).node} & SPLIT_OPERATIONS


def _max_pool(x: Any) -> Any:
    return tf.nn.max_pool2d(x, 2, 1, "SAME")


def _even_kernel(x: Any) -> Any:
    return tf.nn.conv2d(x, _kernel(2, 2, 4, 3), 1, "SAME")


def _explicit_padding(x: Any) -> Any:
    return tf.nn.conv2d(x, _kernel(1, 1, 4, 3), 1, [[0, 0], [1, 1], [1, 1], [0, 0]])


def _uneven_padding(x: Any) -> Any:
    return _convolved(x, [[0, 0], [0, 2], [1, 1], [0, 0]])


def _mean_per_phase(x: Any) -> Any:
    return x * tf.reduce_mean(x, [1, 2], keepdims=True)


def _mean_of_first_phase(x: Any) -> Any:
    """Scales all phases by the mean of the first one, which has the structure of `_gated`."""
    return x * tf.tile(tf.reduce_mean(x, [1, 2], keepdims=True)[:1], [4, 1, 1, 1])


def _number_per_phase(x: Any) -> Any:
    return x + np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)


def _softmax_over_phases(x: Any) -> Any:
    return tf.nn.softmax(x, 0)


def _phases_are_reduced(x: Any) -> Any:
    return tf.reduce_max(_split(x, 0, 1), 0)


def _phases_are_the_output(x: Any) -> Any:
    return _depthwise(_split(x, 0, 1))


@pytest.mark.parametrize(
    "network",
    [
        *(
            _within(each)
            for each in (
                _max_pool,
                _even_kernel,
                _explicit_padding,
                _uneven_padding,
                _mean_per_phase,
                _mean_of_first_phase,
                _number_per_phase,
                _softmax_over_phases,
            )
        ),
        _phases_are_reduced,
        _phases_are_the_output,
    ],
)
def test_an_unsupported_operation_on_phases_leaves_the_graph_unchanged(network: Any) -> None:
    """These operations have no equivalent on the whole map, or the caller reads the phases themselves."""
    graph = _graph(network)
    assert with_dilated_convolutions(graph, ["output"]) is graph


def test_a_graph_without_phases_is_unchanged() -> None:
    """There is nothing to do."""
    graph = _graph(_depthwise)
    assert with_dilated_convolutions(graph, ["output"]) is graph


def test_a_graph_with_a_loop_of_tensorflow_1_is_unchanged() -> None:
    """Its operations have no order."""
    graph = _graph(_within(_depthwise))
    for name, op, source in (("merge", "Merge", "next"), ("next", "NextIteration", "merge")):
        graph.node.add(name=name, op=op, input=[source]).attr["T"].type = tf.float32.as_datatype_enum
    assert with_dilated_convolutions(graph, ["output"]) is graph
