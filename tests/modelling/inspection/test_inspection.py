from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.graphdef import MAX_OPERATIONS, dependent
from cloud.engines.tensorflow.runtime import tf
from cloud.engines.tensorflow.saved_model import saved_model_pb2
from cloud.models.loader import ModelLoader
from modelling.inspection import graph_analysis
from modelling.inspection.inspection import Inspection, InspectionError, inspect, numbered_labels, write
from shared.inference.engine import EngineError
from shared.models.manifest import OutputKind
from shared.models.repository import Repository, default_root

_WEIGHTS = np.random.default_rng(3).normal(size=(3, 3, 3, 4)).astype(np.float32)


def _scores(images: Any) -> Any:
    return tf.nn.conv2d(images, _WEIGHTS, 1, "SAME")


def _images(name: str = "input", shape: Any = (1, 8, 12, 3), dtype: str = "float32") -> Any:
    return tf.compat.v1.placeholder(dtype, shape, name)


def _frozen(folder: Path, build: Callable[[], Any]) -> Path:
    with tf.Graph().as_default() as graph:
        build()
    path = folder / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def _notes(inspection: Inspection) -> str:
    return "\n".join(inspection.notes)


def test_a_typical_segmentation_graph_needs_few_guesses(tmp_path: Path) -> None:
    """Input uint8, output class ids, batch size 1: only the channel order and the labels are guessed."""

    def build() -> None:
        images = tf.cast(_images(dtype="uint8"), tf.float32)
        tf.cast(tf.argmax(_scores(images), -1), tf.uint8, name="prediction")

    found = inspect(_frozen(tmp_path, build))
    section = found.manifest.input
    assert (section.tensor, section.dtype, section.height, section.width, section.scale) == (
        "input:0",
        "uint8",
        8,
        12,
        1.0,
    )
    assert (found.manifest.heads["mask"].tensor, found.manifest.heads["mask"].kind) == (
        "prediction:0",
        OutputKind.CLASS_IDS,
    )
    assert found.interface.classes == 4
    assert len(found.manifest.labels) == 4
    assert "the input has a fixed batch size of 1" in _notes(found)
    assert "rgb8 is guessed" in _notes(found)


def test_input_and_output_are_found_among_training_operations(tmp_path: Path) -> None:
    """A graph from a training script has unused placeholders, a loss and an accuracy, and unusual names."""

    def build() -> None:
        truth = tf.compat.v1.placeholder(tf.int32, (None, 8, 12), "annotation")
        tf.compat.v1.placeholder(tf.float32, (None, 8, 12, 3), "previous_frame")
        scores = _scores(_images("dashcam", (None, 8, 12, 3)))
        ids = tf.argmax(scores, -1, name="best_of")
        tf.nn.sparse_softmax_cross_entropy_with_logits(truth, scores, name="loss_map")
        tf.reduce_mean(tf.cast(tf.equal(tf.cast(ids, tf.int32), truth), tf.float32), name="accuracy")

    found = inspect(_frozen(tmp_path, build))
    assert found.manifest.input.tensor == "dashcam:0"
    assert found.manifest.heads["mask"].tensor == "best_of:0"
    assert not found.manifest.input.constants
    assert "not needed for the output: annotation:0" in _notes(found)
    assert "not needed for the output: previous_frame:0" in _notes(found)
    assert "fixed batch size" not in _notes(found)


def test_dropout_is_switched_off_by_its_placeholders(tmp_path: Path) -> None:
    """A graph that was frozen during training gives masks that change from run to run."""

    def build() -> None:
        training = tf.compat.v1.placeholder(tf.bool, (), "phase")
        keep = tf.compat.v1.placeholder_with_default(tf.constant(0.5), (), "keep_prob")
        images = _images()
        noisy = images * tf.floor(tf.random.uniform((1, 8, 12, 3)) + keep)
        tf.argmax(_scores(tf.where(training, noisy, images * keep)), -1, name="output")

    found = inspect(_frozen(tmp_path, build))
    assert found.manifest.input.constants == {"phase:0": False, "keep_prob:0": 1}
    assert "phase:0 (bool) is fed false" in _notes(found)
    assert "keep_prob:0 (float32) is fed 1: everything is kept" in _notes(found)
    assert "the output depends on random operations" in _notes(found)
    assert "two different outputs" not in _notes(found)


def test_dropout_without_a_placeholder_is_found_by_two_runs(tmp_path: Path) -> None:
    """The notes warn that the same image gives different outputs."""

    def build() -> None:
        images = _images()
        tf.argmax(_scores(images * tf.floor(tf.random.uniform((1, 8, 12, 3)) + 0.5)), -1, name="output")

    assert "two different outputs" in _notes(inspect(_frozen(tmp_path, build)))


@pytest.mark.parametrize(
    ("prepare", "scale", "note"),
    [
        (lambda x: x / 127.5 - 1.0, 1.0, "divides its input by 127.5"),
        (lambda x: x * np.float32(1 / 255), 1.0, "multiplies its input by 0.00392157"),
        (lambda x: x - np.array([123.7, 116.8, 103.9], np.float32), 1.0, "shifts its input by 123.7"),
        (lambda x: x * 2.0 - 1.0, 1 / 255, "multiplies its input by 2: 0..1 is guessed"),
        (lambda x: x, 1 / 255, "nothing in the graph shows the range"),
    ],
)
def test_the_range_of_the_input_is_guessed_from_the_first_arithmetic(
    tmp_path: Path, prepare: Callable[[Any], Any], scale: float, note: str
) -> None:
    """With the wrong range, the model gives plausible but bad masks."""
    found = inspect(_frozen(tmp_path, lambda: tf.argmax(_scores(prepare(_images())), -1, name="output")))
    assert found.manifest.input.scale == pytest.approx(scale)
    assert note in _notes(found)


def test_a_dynamic_input_size_is_guessed_or_given(tmp_path: Path) -> None:
    """A fully convolutional graph accepts any size, but the manifest needs one."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_images(shape=(None, None, None, 3))), -1, name="output"))
    guessed = inspect(path)
    assert (guessed.manifest.input.height, guessed.manifest.input.width) == (512, 1024)
    assert "512×1024 is guessed" in _notes(guessed)
    given = inspect(path, size=(16, 20))
    assert (given.manifest.input.height, given.manifest.input.width) == (16, 20)
    assert "any input size" not in _notes(given)


def test_a_size_that_contradicts_the_graph_is_refused(tmp_path: Path) -> None:
    """The input of this graph has a fixed size."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_images()), -1, name="output"))
    with pytest.raises(EngineError, match="its input is 8×12: leave the size out"):
        inspect(path, size=(16, 20))


def test_a_saved_models_only_signature_is_used_whatever_its_name(tmp_path: Path) -> None:
    """The notes name the signature."""
    module = tf.Module()

    def infer(image: Any) -> dict[str, Any]:
        return {"zz_scores": _scores(image), "a_boxes": tf.reduce_mean(image, (1, 2))}

    signature = tf.function(infer, autograph=False).get_concrete_function(tf.TensorSpec((None, 8, 12, 3), tf.float32))
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"segment": signature})
    for path in (tmp_path / "saved", tmp_path / "saved" / "saved_model.pb"):
        found = inspect(path)
        assert (found.manifest.format, found.manifest.file, found.manifest.signature) == (
            "saved_model",
            "saved",
            "segment",
        )
        assert (found.manifest.input.tensor, found.manifest.heads["mask"].tensor) == ("image", "zz_scores")
        assert "took the signature 'segment' of segment" in _notes(found)


def test_the_written_folder_is_a_model_of_the_repository(tmp_path: Path) -> None:
    """A third-party file can be served after one command; an existing manifest is replaced only with --force."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_images()), -1, name="output"))
    found = inspect(path)
    folder = tmp_path / "models" / "foreign"
    write(found, folder)
    repository = Repository(tmp_path / "models")
    with ModelLoader(repository).open("foreign") as model:
        assert model.predict(np.zeros((1, 8, 12, 3), np.uint8)).shape == (1, 8, 12)
    with pytest.raises(InspectionError, match=r"model\.yaml exists already: give --force"):
        write(found, folder)
    write(inspect(folder / "model.pb"), folder, replace=True)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: tf.compat.v1.placeholder(tf.float32, (1, 10), "features") * 2, "takes no image"),
        (lambda: tf.reduce_mean(_images(), (1, 2, 3)), "gives no class ids.*no scores of an image.*no boxes"),
        (lambda: tf.argmax(_images(shape=(1, 4, 8, 12)), 1), "takes no image"),
        (lambda: tf.constant(1), "takes no image.*its inputs are none"),
    ],
)
def test_a_graph_without_image_input_or_usable_output_is_refused(
    tmp_path: Path, build: Callable[[], Any], problem: str
) -> None:
    """The error lists the tensors that were found."""
    with pytest.raises(EngineError, match=problem) as caught:
        inspect(_frozen(tmp_path, build))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("last", "kind"), [(tf.nn.softmax, OutputKind.PROBABILITIES), (tf.identity, OutputKind.LOGITS)]
)
def test_scores_of_an_image_are_a_classification(tmp_path: Path, last: Callable[..., Any], kind: OutputKind) -> None:
    """The worker applies softmax to logits only."""
    found = inspect(_frozen(tmp_path, lambda: last(tf.reduce_mean(_scores(_images()), (1, 2)), name="answer")))
    assert (found.manifest.task, found.interface.classes) == ("classification", 4)
    head = found.manifest.heads["scores"]
    assert (head.tensor, head.kind) == ("answer:0", kind)


def test_boxes_and_scores_are_a_detection(tmp_path: Path) -> None:
    """The output with four numbers per anchor is the boxes; if both have four, the name decides."""

    def build() -> None:
        maps = tf.reshape(_scores(_images()), (1, 96, 4))
        tf.sigmoid(maps, name="confidence")
        tf.cumsum(tf.abs(maps) * 12.0, axis=-1, name="bbox")

    found = inspect(_frozen(tmp_path, build))
    assert (found.manifest.task, found.interface.classes) == ("detection", 4)
    heads = found.manifest.heads
    assert (heads["boxes"].tensor, heads["boxes"].kind) == ("bbox:0", OutputKind.BOXES)
    assert (heads["scores"].tensor, heads["scores"].kind) == ("confidence:0", OutputKind.PROBABILITIES)
    assert "bbox:0 is assumed to be xyxy in pixels" in _notes(found)


def test_scores_beside_class_ids_are_the_confidence() -> None:
    """The built-in local model has both, so that its inspection gives the manifest that its recipe writes."""
    stored = Repository(default_root()).find("road-tiny")
    found = inspect(stored.file(), labels=stored.labels())
    assert (found.manifest.output, found.manifest.confidence) == (stored.manifest.output, stored.manifest.confidence)
    assert "scores is assumed to be the scores before softmax" in _notes(found)


def test_the_analysis_of_many_outputs_traverses_the_graph_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One traversal per output took more than a minute for a graph of a megabyte."""
    traversals: list[object] = []

    def counted(graph: Any, sources: Any) -> set[str]:
        traversals.append(sources)
        return dependent(graph, sources)

    monkeypatch.setattr(graph_analysis, "dependent", counted)

    def build() -> None:
        images = _images()
        for _ in range(300):
            tf.identity(images)

    assert len(inspect(_frozen(tmp_path, build)).interface.others) == 299
    assert len(traversals) <= 4


def test_a_graph_with_too_many_operations_is_refused(tmp_path: Path) -> None:
    """Loading three megabytes of operations would take minutes."""
    graph = tf.compat.v1.GraphDef()
    for number in range(MAX_OPERATIONS + 1):
        graph.node.add(name=str(number), op="NoOp")
    path = tmp_path / "large.pb"
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(EngineError, match="holds 50001 operations, which no network does"):
        inspect(path)
    folder = tmp_path / "saved"
    folder.mkdir()
    proto = saved_model_pb2.SavedModel()
    proto.meta_graphs.add().graph_def.CopyFrom(graph)
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(EngineError, match="holds 50001 operations, which no network does"):
        inspect(folder)


@pytest.mark.parametrize("name", ["absent.pb", "text.pb", "text.keras", "text.h5", "folder"])
def test_an_invalid_file_gives_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    """The error names the file."""
    for text in ("text.pb", "text.keras", "text.h5"):
        (tmp_path / text).write_text("not a model\n" * 50)
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError) as caught:
        inspect(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbered_labels_have_distinct_names_and_colours() -> None:
    """A mask of unnamed classes must still be readable."""
    labels = numbered_labels(256)
    assert len(set(labels.names)) == len(set(labels.colours)) == 256
