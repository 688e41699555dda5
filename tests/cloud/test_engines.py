from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.tensorflow.runtime import tf
from shared.inference.engine import EngineError, InferenceError
from shared.models.manifest import Precision

Pictures = npt.NDArray[np.uint8]
ENGINES = pytest.mark.parametrize("engine", ["tensorflow", "openvino"])


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("scores", lambda scores: scores),
        ("class_ids", lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)),
        ("class_ids", lambda scores: tf.argmax(scores, -1)),
        ("class_ids", lambda scores: tf.cast(tf.argmax(scores, -1), tf.float32)[..., tf.newaxis]),
    ],
    ids=["scores", "uint8 ids", "int64 ids", "float ids with a channel"],
)
@pytest.mark.parametrize("batch", [None, 1, 2], ids=["any batch", "batch of one", "batch of two"])
@ENGINES
def test_every_kind_of_output_equals_the_direct_call(  # noqa: PLR0917 - parametrized.
    workshop: Any, pictures: Pictures, kind: str, answer: Callable[[Any], Any], batch: int | None, engine: str
) -> None:
    """The labels are the same bit by bit, also with a fixed batch size and for a read-only view of a message."""
    workshop.add("m", workshop.graph(answer, batch=batch), output={"kind": kind}, batching={"max_size": 3})
    pictures.flags.writeable = False
    with workshop.open("m", engine=engine) as model:
        masks = model.predict(pictures)
        assert (model.engine_name, model.precision) == (engine, Precision.FP32)
        assert model.max_batch_size == (batch if batch and engine == "openvino" else 3)
    assert masks.dtype == np.uint8
    np.testing.assert_array_equal(masks, workshop.direct(pictures.astype(np.float32)))
    assert len(np.unique(masks)) > 1


def test_a_uint8_model_gets_unchanged_pixels(workshop: Any, pictures: Pictures) -> None:
    """The two road models scale their input within the graph."""
    graph = workshop.graph(
        lambda scores: tf.argmax(scores, -1), dtype="uint8", prepare=lambda images: tf.cast(images, tf.float32) - 100.0
    )
    workshop.add("m", graph, input={"dtype": "uint8"})
    with workshop.open("m") as model:
        masks = model.predict(pictures)
    np.testing.assert_array_equal(masks, workshop.direct(pictures.astype(np.float32) - 100.0))


@pytest.mark.parametrize("planar", [False, True], ids=["NHWC", "NCHW"])
@ENGINES
def test_scale_mean_and_std_are_applied_per_channel(
    workshop: Any, pictures: Pictures, engine: str, *, planar: bool
) -> None:
    """A wrong normalisation would still give a mask; networks of PyTorch take planar images."""
    mean, std = (0.5, 0.25, 0.75), (0.25, 0.5, 2.0)
    section = {"scale": 1 / 255, "mean": list(mean), "std": list(std)}
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.float32, (None, 3, 8, 12) if planar else (None, 8, 12, 3), "input")
        tf.identity(workshop.scores(tf.transpose(images, (0, 2, 3, 1)) if planar else images), "prediction")
    workshop.add("m", graph.as_graph_def(), input=section, output={"kind": "scores"})
    with workshop.open("m", engine=engine) as model:
        masks = model.predict(pictures)
    scaled = (pictures.astype(np.float32) * np.float32(1 / 255) - np.array(mean, np.float32)) / np.array(
        std, np.float32
    )
    # Rounding in OpenVINO may resolve near-ties differently.
    assert np.mean(masks == workshop.direct(scaled)) >= (0.99 if engine == "openvino" else 1)


@ENGINES
def test_equal_scores_give_the_lowest_class(workshop: Any, pictures: Pictures, engine: str) -> None:
    """This is the rule of NumPy, so that the mask does not depend on the place of the arg max."""
    workshop.add("m", workshop.graph(tf.zeros_like), output={"kind": "scores"})
    with workshop.open("m", engine=engine) as model:
        assert not model.predict(pictures).any()


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("scores", lambda scores: scores), ("class_ids", lambda scores: tf.argmax(scores, -1))],
    ids=["scores", "ids"],
)
@ENGINES
def test_a_smaller_mask_is_enlarged_by_nearest_neighbour(
    workshop: Any, pictures: Pictures, kind: str, answer: Callable[[Any], Any], engine: str
) -> None:
    """Some networks return masks at a fraction of their input size."""
    workshop.add("m", workshop.graph(lambda scores: answer(scores)[:, ::4, ::4]), output={"kind": kind})
    with workshop.open("m", engine=engine) as model:
        masks = model.predict(pictures)
    coarse = workshop.direct(pictures.astype(np.float32))[:, ::4, ::4]
    np.testing.assert_array_equal(masks, coarse.repeat(4, axis=1).repeat(4, axis=2))


def test_unused_placeholders_and_training_operations_are_ignored(workshop: Any, pictures: Pictures) -> None:
    """Real graphs have them; the engine feeds only what the output needs."""
    graph = tf.Graph()
    with graph.as_default():
        truth = tf.compat.v1.placeholder(tf.int32, (None, 8, 12), "truth")
        images = tf.compat.v1.placeholder(tf.float32, (None, 8, 12, 3), "camera")
        scores = workshop.scores(images)
        tf.identity(tf.argmax(scores, -1), "ArgMax_3")
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(truth, scores), name="loss")
    workshop.add("m", graph.as_graph_def(), input={"tensor": "camera"}, output={"tensor": "ArgMax_3"})
    with workshop.open("m") as model:
        np.testing.assert_array_equal(model.predict(pictures), workshop.direct(pictures.astype(np.float32)))


def _with_switch() -> Any:
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.float32, (None, 8, 12, 3), "input")
        keep = tf.compat.v1.placeholder(tf.float32, (), "keep_prob")
        tf.identity(tf.cast(images[..., 0] * keep > 100, tf.int32), "prediction")
    return graph.as_graph_def()


def test_constants_of_the_manifest_are_fed(workshop: Any, pictures: Pictures) -> None:
    """Its keep_prob switches dropout off."""
    workshop.add("m", _with_switch(), input={"constants": {"keep_prob:0": 1.0}})
    with workshop.open("m") as model:
        np.testing.assert_array_equal(model.predict(pictures), pictures[..., 0] > 100)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"input": {"tensor": "inputs:0"}}, "no input tensor 'inputs:0': did you mean input"),
        ({"output": {"tensor": "xyz"}}, "no output tensor 'xyz': choose one of input, keep_prob, prediction"),
        ({"input": {"tensor": "prediction"}, "output": {"tensor": "input"}}, "does not depend on"),
        ({}, "also needs keep_prob: give each a value in input.constants"),
        ({"input": {"constants": {"keep_prop": 1}}}, "no constant tensor 'keep_prop': did you mean keep_prob"),
        ({"input": {"dtype": "uint8"}}, "is float32, the manifest's dtype uint8"),
        ({"input": {"height": 9}}, "is ?×8×12×3, the manifest's N×9×12×3"),
        ({"input": {"constants": {"keep_prob": 1}}, "output": {"kind": "scores"}}, "scores need N×H×W×C"),
        ({"input": {"constants": {"keep_prob": 1}}, "output": {"tensor": "prediction:5"}}, "cannot load this graph"),
    ],
)
def test_a_graph_that_contradicts_its_manifest_is_refused(workshop: Any, changes: dict[str, Any], problem: str) -> None:
    """The error is one line, before the first frame."""
    workshop.add("m", _with_switch(), **changes)
    with pytest.raises(EngineError) as caught:
        workshop.open("m")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scores_for_more_classes_than_labels_are_refused(workshop: Any) -> None:
    """A class without a name would be painted black."""
    labels = [{"name": "road", "colour": [1, 2, 3]}]
    workshop.add("m", workshop.graph(lambda scores: scores), output={"kind": "scores"}, labels=labels)
    with pytest.raises(EngineError, match="5 scores where the manifest has 1 labels"):
        workshop.open("m")


@pytest.mark.parametrize("content", [b"", b"no graph at all", b"\x0a\x05hello" * 9, bytes(range(256)) * 20])
def test_a_file_of_another_format_is_refused(workshop: Any, content: bytes) -> None:
    """The error is one line."""
    workshop.add("m", content)
    with pytest.raises(EngineError, match="is not a TensorFlow GraphDef"):
        workshop.open("m")


def test_a_truncated_graph_is_refused(workshop: Any) -> None:
    """An interrupted download may end between two operations, where the file is still readable."""
    data = workshop.graph(lambda scores: tf.argmax(scores, -1)).SerializeToString()
    for index, length in enumerate(range(0, len(data), len(data) // 40)):
        workshop.add(f"cut-{index}", data[:length])
        with pytest.raises(EngineError):
            workshop.open(f"cut-{index}")


def test_a_constant_with_a_wrong_type_is_refused(workshop: Any) -> None:
    """TensorFlow would abort the process because of one flipped bit."""
    graph = workshop.graph(lambda scores: tf.argmax(scores, -1))
    next(node for node in graph.node if node.op == "Const").attr["dtype"].type = tf.int64.as_datatype_enum
    workshop.add("m", graph)
    with pytest.raises(EngineError, match="has contradictory dtypes: the file is damaged"):
        workshop.open("m")


def test_a_graph_with_an_unknown_operation_is_refused(workshop: Any) -> None:
    """The graph may come from a newer TensorFlow, or have custom operations."""
    graph = workshop.graph(lambda scores: tf.argmax(scores, -1))
    next(node for node in graph.node if node.op == "ArgMax").op = "OfAnotherWorld"
    workshop.add("m", graph)
    with pytest.raises(EngineError, match=r"cannot load this graph: .*OfAnotherWorld"):
        workshop.open("m")


@ENGINES
def test_a_graph_that_reads_files_is_refused(workshop: Any, engine: str) -> None:
    """A graph is a program, and must not read the files of the worker."""

    def peeking(images: Any) -> Any:
        return images + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)

    workshop.add("m", workshop.graph(lambda scores: tf.argmax(scores, -1), prepare=peeking))
    with pytest.raises(EngineError, match=r"\(ReadFile\) accesses files or calls Python"):
        workshop.open("m", engine=engine)


def test_a_model_that_fails_on_a_batch_serves_the_next_one(workshop: Any, pictures: Pictures) -> None:
    """The sender of the frame gets the error."""

    def dark_only(images: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(images, 200.0)]):
            return tf.identity(images)

    workshop.add("m", workshop.graph(lambda scores: tf.argmax(scores, -1), prepare=dark_only))
    with workshop.open("m") as model:
        # The text is sent to the vehicle: it contains the reason and no path of this host.
        with pytest.raises(InferenceError, match=r"^the model failed: assertion failed"):
            model.predict(np.full_like(pictures, 255))
        assert model.predict(pictures // 2).shape == (3, 8, 12)


class _Street(tf.Module):  # type: ignore[misc]  # TensorFlow ships no types.
    """A module with a variable, two inputs and two outputs, none in alphabetical order."""

    def __init__(self, weights: npt.NDArray[np.float32]) -> None:
        super().__init__()
        self.weights = tf.Variable(weights)

    def signature(self) -> Any:
        def answer(zoom: Any, image: Any) -> dict[str, Any]:
            scores = tf.nn.conv2d(image * zoom, self.weights, 1, "SAME")
            return {"scores": scores, "best": tf.argmax(scores, -1)}

        specifications = tf.TensorSpec((), tf.float32), tf.TensorSpec((None, 8, 12, 3), tf.float32)
        return tf.function(answer, autograph=False).get_concrete_function(*specifications)


def _save_street(workshop: Any) -> Callable[[Path], None]:
    street = _Street(workshop.weights)
    return lambda path: tf.saved_model.save(street, str(path), signatures={"street": street.signature()})


@pytest.mark.parametrize(("key", "kind"), [("scores", "scores"), ("best", "class_ids")])
def test_a_saved_model_equals_the_direct_call(workshop: Any, pictures: Pictures, key: str, kind: str) -> None:
    """The keys of the signature select inputs and outputs, in any order."""
    folder = workshop.add(
        "m",
        _save_street(workshop),
        format="saved_model",
        file="saved",
        signature="street",
        input={"tensor": "image", "constants": {"zoom": 2.0}},
        output={"tensor": key, "kind": kind},
        batching={"max_size": 2},
    )
    with workshop.open("m") as model:
        masks = model.predict(pictures)
    loaded = tf.saved_model.load(str(folder / "saved")).signatures["street"]
    ours = loaded(image=pictures.astype(np.float32), zoom=tf.constant(2.0))["best"].numpy()
    np.testing.assert_array_equal(masks, ours)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"signature": "stret"}, "no signature 'stret': did you mean street"),
        ({"input": {"tensor": "imag"}}, "no input 'imag': did you mean image"),
        ({"output": {"tensor": "score"}}, "no output 'score': did you mean scores"),
    ],
)
def test_a_signature_without_the_named_keys_is_refused(workshop: Any, changes: dict[str, Any], problem: str) -> None:
    """The message suggests similar names."""
    manifest = {"input": {"tensor": "image"}, "output": {"tensor": "best"}, "signature": "street"} | changes
    workshop.add("m", _save_street(workshop), format="saved_model", file="saved", **manifest)
    with pytest.raises(EngineError, match=problem):
        workshop.open("m")


def test_a_folder_or_a_damaged_saved_model_is_refused(workshop: Any) -> None:
    """An interrupted copy is the usual cause."""

    def damaged(path: Path) -> None:
        _save_street(workshop)(path)
        (path / "saved_model.pb").write_bytes(b"\xff" * 100)

    workshop.add("damaged", damaged, format="saved_model", file="saved")
    with pytest.raises(EngineError, match="cannot load this SavedModel"):
        workshop.open("damaged")
    workshop.add("folder", Path.mkdir, format="saved_model", file="saved")
    with pytest.raises(EngineError, match="is not a SavedModel"):
        workshop.open("folder")


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_keras_file_equals_the_model_in_inference_mode(workshop: Any, pictures: Pictures, suffix: str) -> None:
    """Dropout is off, and the names are those of the built model."""
    import keras  # noqa: PLC0415  It loads TensorFlow, which must be imported quietly first.

    picture = keras.Input((8, 12, 3), name="picture")
    scores = keras.layers.Conv2D(5, 3, padding="same", name="scores")(keras.layers.Dropout(0.5)(picture))
    network = keras.Model(picture, scores)
    workshop.add(
        "m",
        network.save,
        format="keras",
        file=f"model.{suffix}",
        input={"tensor": "picture"},
        output={"tensor": "scores", "kind": "scores"},
        batching={"max_size": 3},
    )
    with workshop.open("m") as model:
        masks = model.predict(pictures)
    np.testing.assert_array_equal(masks, np.argmax(network(pictures.astype(np.float32), training=False), axis=-1))


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_file_of_another_format_is_not_a_keras_model(workshop: Any, suffix: str) -> None:
    """The error is one line, whatever Keras or HDF5 raise."""
    workshop.add("m", b"nothing of the kind", format="keras", file=f"model.{suffix}")
    with pytest.raises(EngineError, match="cannot load this file") as caught:
        workshop.open("m")
    assert "\n" not in str(caught.value)
