from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import DeviceError, InferenceError, Placement, Precision
from cloud.engines.tensorflow.graph_rewriting import defer_widening_layers, freed
from cloud.engines.tensorflow.graphdef import read_graph
from cloud.engines.tensorflow.library import check_precision, tf
from cloud.models.warmup_images import pictures

_REPOSITORY = Path(__file__).resolve().parents[4]
_HEIGHT, _WIDTH = 8, 12


def _phases(*, widen: int, look: bool = False, places: bool = False) -> Any:
    """Phases, a 1×1 convolution to so many channels with an activation, the join, a crop.

    `look`: the layer is read before the join as well. `places`: it adds another number at each place.
    """
    random = np.random.default_rng(3)
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        split = tf.space_to_batch(tf.cast(images, tf.float32) / 255, [2, 2], [[0, 0], [0, 0]])
        weights = random.normal(size=(1, 1, 3, widen)).astype(np.float32)
        wide = tf.nn.bias_add(tf.nn.conv2d(split, weights, 1, "SAME"), random.normal(size=widen).astype(np.float32))
        swish = wide * tf.nn.relu6(wide + 3.0) / 6.0
        if places:
            swish += random.normal(size=(1, _HEIGHT // 2, _WIDTH // 2, 1)).astype(np.float32)
        joined = tf.batch_to_space(swish, [2, 2], [[0, 0], [0, 0]])[:, :, :10]
        scores = tf.reduce_sum(joined, -1) + (tf.reduce_mean(swish) if look else 0.0)
        tf.cast(scores * 10, tf.uint8, name="prediction")
    return graph.as_graph_def()


def _answers(graph: Any, shown: npt.NDArray[np.uint8]) -> Any:
    with tf.Graph().as_default() as held:
        tf.import_graph_def(graph, name="")
        return tf.compat.v1.Session(graph=held).run("prediction:0", {"input:0": shown})


def test_a_widening_layer_is_moved_behind_the_join_and_no_label_changes() -> None:
    """It is where the shipped graph spends bytes for nothing; the labels are what must not pay."""
    graph = _phases(widen=16)
    moved = defer_widening_layers(graph, ["prediction:0"])
    (join,) = [node for node in moved.node if node.op == "BatchToSpaceND"]
    assert join.input[0].startswith("SpaceToBatchND")
    shown = pictures(_HEIGHT, _WIDTH, 1)
    np.testing.assert_array_equal(_answers(moved, shown), _answers(graph, shown))


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(lambda: _phases(widen=2), id="it narrows: more bytes would move"),
        pytest.param(lambda: _phases(widen=16, look=True), id="read before the join too"),
        pytest.param(lambda: _phases(widen=16, places=True), id="not the same at every pixel"),
    ],
)
def test_what_cannot_be_moved_stays(graph: Any) -> None:
    """A rewriting that is not sound is worse than none."""
    made = graph()
    assert defer_widening_layers(made, ["prediction:0"]) == made


def test_the_shipped_graph_is_rewritten_and_gives_the_same_labels() -> None:
    """The figures of this rewriting are of this graph."""
    graph = read_graph(_REPOSITORY / "models" / "road-small" / "model.pb")
    moved = defer_widening_layers(graph, ["prediction:0"])
    assert moved != graph
    shown = pictures(608, 968, 1)
    np.testing.assert_array_equal(_answers(moved, shown), _answers(graph, shown))


def _reshaping(shape: list[int]) -> Any:
    """A network that flattens its pictures by a constant shape, with the batch of one in it, and lays them back."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        rows = tf.reshape(tf.cast(images, tf.int32), shape)
        tf.reshape(tf.cast(rows[..., 0] > 100, tf.uint8), [1, _HEIGHT, _WIDTH], name="prediction")
    return graph.as_graph_def()


_MANIFEST: dict[str, Any] = {"input": {"dtype": "uint8"}, "batching": {"max_size": 3}}


def test_a_batch_baked_into_reshapes_too_is_set_free(workshop: Any, pictures: Any) -> None:
    """Exporters bake it into every constant shape; each says one first side where any number is meant."""
    workshop.add("m", _reshaping([1, _HEIGHT * _WIDTH, 3]), **_MANIFEST)
    with workshop.repository.load("m") as model:
        assert model.max_batch_size == 3
        np.testing.assert_array_equal(model.predict(pictures), pictures[..., 0] > 100)


def test_a_batch_that_cannot_be_set_free_is_run_one_by_one_and_told(workshop: Any, pictures: Any) -> None:
    """A graph that mixes the pictures of a batch would give each vehicle another's mask."""
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (1, _HEIGHT, _WIDTH, 3), "input")
        brightness = tf.reduce_mean(tf.cast(images[..., 0], tf.float32))  # Over the batch as well.
        tf.cast(tf.cast(images[..., 0], tf.float32) > brightness, tf.uint8, name="prediction")
    workshop.add("m", graph.as_graph_def(), **_MANIFEST)
    with workshop.repository.load("m") as model:
        assert model.max_batch_size == 1
        assert "batch of 1 baked into the graph, run one by one" in model.describe()
        wanted = [picture[..., 0] > picture[..., 0].mean() for picture in pictures]
        np.testing.assert_array_equal(model.predict(pictures), wanted)


def test_a_freed_graph_is_a_copy() -> None:
    """The graph as it is must still be there, to fall back on."""
    graph = _reshaping([1, _HEIGHT * _WIDTH, 3])
    before = graph.SerializeToString(deterministic=True)
    assert freed(graph, "input:0", reshapes=True) != graph
    assert graph.SerializeToString(deterministic=True) == before


def test_dropout_left_on_is_told_by_the_warm_up(workshop: Any) -> None:
    """Two masks of one picture: whoever serves such a model must read it in the log."""
    workshop.add("m", workshop.graph(lambda scores: tf.argmax(tf.nn.dropout(scores, 0.5), -1)))
    with workshop.repository.load("m") as model:
        assert model.warnings == ()
        model.warm_up(3)
        assert "dropout or noise is on" in model.warnings[0]
        assert "WARNING: the same picture gave two different answers" in model.describe()


def test_a_score_that_is_no_number_is_an_error_of_its_frame(workshop: Any, pictures: Any) -> None:
    """Arg max makes a class of NaN as of anything else: nobody would see that the mask is rubbish."""
    workshop.add("m", workshop.graph(tf.math.log), output={"kind": "scores"})
    with workshop.repository.load("m") as model, pytest.raises(InferenceError, match="returned NaN among its scores"):
        model.predict(pictures)


def test_what_the_model_says_of_a_frame_is_told(workshop: Any, pictures: Any) -> None:
    """`Graph execution error:` is the first line of every error of TensorFlow's: the vehicle's log needs what follows."""

    def refuse(scores: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_max(scores) < 0, ["too bright"])]):
            return tf.argmax(scores, -1)

    workshop.add("m", workshop.graph(refuse))
    said = r"the model failed: assertion failed: \[too bright\]"
    with workshop.repository.load("m") as model, pytest.raises(InferenceError, match=said):
        model.predict(pictures)


def test_a_precision_that_the_device_does_not_have_is_refused() -> None:
    """Who asked for fewer bits must not measure FP32."""
    with pytest.raises(DeviceError, match="TensorFlow computes in fp32 or bf16 there, not in int8"):
        check_precision(Precision.INT8, "cpu")
    with pytest.raises(DeviceError, match="fp32 or fp16 there, not in bf16"):
        check_precision(Precision.BF16, "gpu:0")


def test_bf16_is_told_and_nearly_fp32(workshop: Any, pictures: Any) -> None:
    """The log says what computed a mask; its labels may differ at edges alone."""
    try:
        check_precision(Precision.BF16, "cpu")
    except DeviceError as error:
        pytest.skip(str(error))
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, batching={"max_size": 3})
    with workshop.repository.load("m", Placement(precision=Precision.BF16)) as model:
        assert model.precision is Precision.BF16
        assert np.mean(model.predict(pictures) == workshop.direct(pictures.astype(np.float32))) > 0.95
