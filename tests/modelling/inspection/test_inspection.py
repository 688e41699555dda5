from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.graphdef import MAX_OPERATIONS, dependent
from cloud.engines.tensorflow.library import tf
from cloud.engines.tensorflow.saved_model import saved_model_pb2
from cloud.models.manifest import OutputKind
from cloud.models.repository import Repository
from modelling.inspection import graph_analysis
from modelling.inspection.inspection import Inspection, InspectionError, inspect, numbered_labels, write
from shared.imaging.labels import Labels
from shared.messages.model_card import Task

_WEIGHTS = np.random.default_rng(3).normal(size=(3, 3, 3, 4)).astype(np.float32)


def _scores(images: Any) -> Any:
    return tf.nn.conv2d(images, _WEIGHTS, 1, "SAME")


def _pictures(name: str = "input", shape: Any = (1, 8, 12, 3), dtype: str = "float32") -> Any:
    return tf.compat.v1.placeholder(dtype, shape, name)


def _frozen(folder: Path, build: Callable[[], Any]) -> Path:
    with tf.Graph().as_default() as graph:
        build()
    path = folder / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def _told(inspection: Inspection) -> str:
    return "\n".join(inspection.notes)


def test_the_usual_road_graph_is_read_without_a_doubt(tmp_path: Path) -> None:
    """uint8 in, class ids out, batch of one: nothing but colours and labels is left to guess."""

    def build() -> None:
        images = tf.cast(_pictures(dtype="uint8"), tf.float32)
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
    assert "a batch of 1 is baked" in _told(found)
    assert "rgb8 is guessed" in _told(found)


def test_the_true_ends_are_found_among_training_leftovers_and_unusual_names(tmp_path: Path) -> None:
    """Spare placeholders, a loss by the truth, an accuracy: as a training script left them."""

    def build() -> None:
        truth = tf.compat.v1.placeholder(tf.int32, (None, 8, 12), "annotation")
        tf.compat.v1.placeholder(tf.float32, (None, 8, 12, 3), "previous_frame")
        scores = _scores(_pictures("dashcam", (None, 8, 12, 3)))
        ids = tf.argmax(scores, -1, name="best_of")
        tf.nn.sparse_softmax_cross_entropy_with_logits(truth, scores, name="loss_map")
        tf.reduce_mean(tf.cast(tf.equal(tf.cast(ids, tf.int32), truth), tf.float32), name="accuracy")

    found = inspect(_frozen(tmp_path, build))
    assert found.manifest.input.tensor == "dashcam:0"
    assert found.manifest.heads["mask"].tensor == "best_of:0"
    assert not found.manifest.input.constants
    assert "not needed for the answer: annotation:0" in _told(found)
    assert "not needed for the answer: previous_frame:0" in _told(found)
    assert "baked" not in _told(found)


def test_scores_are_told_from_class_ids(tmp_path: Path) -> None:
    """Four channels of floats are scores; arg max is then ours to add."""
    found = inspect(_frozen(tmp_path, lambda: tf.nn.softmax(_scores(_pictures()), name="softmax")))
    assert found.manifest.heads["mask"].kind is OutputKind.SCORES
    assert found.interface.classes == 4


def test_dropout_left_on_is_switched_off_by_its_placeholders(tmp_path: Path) -> None:
    """A mask that changes from run to run is the usual sign of a graph frozen in training."""

    def build() -> None:
        training = tf.compat.v1.placeholder(tf.bool, (), "phase")
        keep = tf.compat.v1.placeholder_with_default(tf.constant(0.5), (), "keep_prob")
        images = _pictures()
        noisy = images * tf.floor(tf.random.uniform((1, 8, 12, 3)) + keep)
        tf.argmax(_scores(tf.where(training, noisy, images * keep)), -1, name="output")

    found = inspect(_frozen(tmp_path, build))
    assert found.manifest.input.constants == {"phase:0": False, "keep_prob:0": 1}
    assert "phase:0 (bool) is fed false" in _told(found)
    assert "keep_prob:0 (float32) is fed 1: all is kept" in _told(found)
    assert "random operations on the way to the answer" in _told(found)
    assert "two different answers" not in _told(found)


def test_dropout_that_cannot_be_switched_off_is_found_by_trying(tmp_path: Path) -> None:
    """Where no placeholder governs it, two runs tell."""

    def build() -> None:
        images = _pictures()
        tf.argmax(_scores(images * tf.floor(tf.random.uniform((1, 8, 12, 3)) + 0.5)), -1, name="output")

    assert "two different answers" in _told(inspect(_frozen(tmp_path, build)))


@pytest.mark.parametrize(
    ("prepare", "scale", "told"),
    [
        (lambda x: x / 127.5 - 1.0, 1.0, "divides its input by 127.5"),
        (lambda x: x * np.float32(1 / 255), 1.0, "multiplies its input by 0.00392157"),
        (lambda x: x - np.array([123.7, 116.8, 103.9], np.float32), 1.0, "shifts its input by 123.7"),
        (lambda x: x * 2.0 - 1.0, 1 / 255, "multiplies its input by 2: 0..1 is guessed"),
        (lambda x: x, 1 / 255, "nothing in the graph tells the range"),
    ],
)
def test_the_range_of_the_input_is_guessed_by_what_the_graph_does_first(
    tmp_path: Path, prepare: Callable[[Any], Any], scale: float, told: str
) -> None:
    """0..1 and 0..255 look alike from outside, and the wrong one gives a plausible bad mask."""
    found = inspect(_frozen(tmp_path, lambda: tf.argmax(_scores(prepare(_pictures())), -1, name="output")))
    assert found.manifest.input.scale == pytest.approx(scale)
    assert told in _told(found)


def test_an_open_size_is_guessed_and_said_or_given(tmp_path: Path) -> None:
    """Fully convolutional graphs take any size; a vehicle needs one."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_pictures(shape=(None, None, None, 3))), -1, name="output"))
    guessed = inspect(path)
    assert (guessed.manifest.input.height, guessed.manifest.input.width) == (512, 1024)
    assert "512×1024 is guessed" in _told(guessed)
    given = inspect(path, size=(16, 20))
    assert (given.manifest.input.height, given.manifest.input.width) == (16, 20)
    assert "size open" not in _told(given)


def test_a_size_against_the_graphs_own_is_refused(tmp_path: Path) -> None:
    """A fixed graph cannot be resized by a flag."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_pictures()), -1, name="output"))
    with pytest.raises(EngineError, match="its input is 8×12: leave the size out"):
        inspect(path, size=(16, 20))


def test_labels_of_another_number_are_told(tmp_path: Path) -> None:
    """The usual mistake: the labels of another data set."""
    labels = Labels(("road", "sky"), ((1, 2, 3), (4, 5, 6)))
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_pictures()), -1, name="output"))
    found = inspect(path, labels=labels)
    assert [label.name for label in found.manifest.labels] == ["road", "sky"]
    assert "the graph has 4 classes, the labels name 2" in _told(found)


def test_a_saved_model_without_the_usual_signature_takes_the_one_it_has(tmp_path: Path) -> None:
    """Names other than the usual must work, and be said."""
    module = tf.Module()

    def answer(image: Any) -> dict[str, Any]:
        return {"zz_scores": _scores(image), "a_boxes": tf.reduce_mean(image, (1, 2))}

    signature = tf.function(answer, autograph=False).get_concrete_function(tf.TensorSpec((None, 8, 12, 3), tf.float32))
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"segment": signature})
    for path in (tmp_path / "saved", tmp_path / "saved" / "saved_model.pb"):
        found = inspect(path)
        assert (found.manifest.format, found.manifest.file, found.manifest.signature) == (
            "saved_model",
            "saved",
            "segment",
        )
        assert (found.manifest.input.tensor, found.manifest.heads["mask"].tensor) == ("image", "zz_scores")
        assert "no signature 'serving_default': took 'segment'" in _told(found)


def test_what_is_written_is_a_model_of_the_repository(tmp_path: Path) -> None:
    """From a foreign file to a served model in one command."""
    path = _frozen(tmp_path, lambda: tf.argmax(_scores(_pictures()), -1, name="output"))
    found = inspect(path, trained=False)
    folder = tmp_path / "models" / "foreign"
    write(found, folder)
    repository = Repository(tmp_path / "models")
    assert repository.card("foreign").trained is False
    with repository.load("foreign") as model:
        assert model.predict(np.zeros((1, 8, 12, 3), np.uint8)).shape == (1, 8, 12)
    with pytest.raises(InspectionError, match=r"model\.yaml is there already: give --force"):
        write(found, folder)
    write(inspect(folder / "model.pb"), folder, replace=True)
    assert repository.card("foreign").trained is True


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: tf.compat.v1.placeholder(tf.float32, (1, 10), "features") * 2, "takes no picture"),
        (lambda: tf.reduce_mean(_pictures(), (1, 2, 3)), "gives no class ids.*no scores of a whole one.*no boxes"),
        (lambda: tf.argmax(_pictures(shape=(1, 3, 8, 12)), 1), "takes no picture"),
        (lambda: tf.constant(1), "takes no picture.*its inputs are none"),
    ],
)
def test_a_graph_that_answers_no_picture_is_refused(tmp_path: Path, build: Callable[[], Any], problem: str) -> None:
    """It says what was found instead."""
    with pytest.raises(EngineError, match=problem) as caught:
        inspect(_frozen(tmp_path, build))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("last", "kind"), [(tf.nn.softmax, OutputKind.PROBABILITIES), (tf.identity, OutputKind.LOGITS)]
)
def test_scores_of_whole_pictures_are_a_classification(
    tmp_path: Path, last: Callable[..., Any], kind: OutputKind
) -> None:
    """Whether they are probabilities already decides whether the worker takes the softmax."""
    found = inspect(_frozen(tmp_path, lambda: last(tf.reduce_mean(_scores(_pictures()), (1, 2)), name="answer")))
    assert (found.manifest.task, found.interface.classes) == (Task.CLASSIFICATION, 4)
    head = found.manifest.heads["scores"]
    assert (head.tensor, head.kind) == ("answer:0", kind)


def test_boxes_with_their_scores_are_a_detection(tmp_path: Path) -> None:
    """Two heads of as many anchors, of which the one with four numbers, named so where both have, is the boxes."""

    def build() -> None:
        maps = tf.reshape(_scores(_pictures()), (1, 96, 4))
        tf.sigmoid(maps, name="confidence")
        tf.identity(maps * 12.0, name="bbox")

    found = inspect(_frozen(tmp_path, build))
    assert (found.manifest.task, found.interface.classes) == (Task.DETECTION, 4)
    heads = found.manifest.heads
    assert (heads["boxes"].tensor, heads["boxes"].kind) == ("bbox:0", OutputKind.BOXES)
    assert (heads["scores"].tensor, heads["scores"].kind) == ("confidence:0", OutputKind.PROBABILITIES)
    assert "bbox:0 is taken for x1, y1, x2, y2" in _told(found)


def test_a_graph_of_many_ends_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed once for each of its ends, one of a megabyte took more than a minute."""
    followed: list[object] = []

    def counted(graph: Any, sources: Any) -> set[str]:
        followed.append(sources)
        return dependent(graph, sources)

    monkeypatch.setattr(graph_analysis, "dependent", counted)

    def build() -> None:
        pictures = _pictures()
        for _ in range(300):
            tf.identity(pictures)

    assert len(inspect(_frozen(tmp_path, build)).interface.others) == 299
    assert len(followed) <= 4


def test_a_graph_of_more_operations_than_any_network_is_refused(tmp_path: Path) -> None:
    """Three megabytes of them would take minutes."""
    graph = tf.compat.v1.GraphDef()
    for number in range(MAX_OPERATIONS + 1):
        graph.node.add(name=str(number), op="NoOp")
    path = tmp_path / "large.pb"
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(EngineError, match="holds 50001 operations, which no network does"):
        inspect(path)
    folder = tmp_path / "saved"
    folder.mkdir()
    described = saved_model_pb2.SavedModel()
    described.meta_graphs.add().graph_def.CopyFrom(graph)
    (folder / "saved_model.pb").write_bytes(described.SerializeToString())
    with pytest.raises(EngineError, match="holds 50001 operations, which no network does"):
        inspect(folder)


@pytest.mark.parametrize("name", ["absent.pb", "text.pb", "text.keras", "text.h5", "folder"])
def test_a_foreign_file_gives_one_line(tmp_path: Path, name: str) -> None:
    """Whatever is in it."""
    for text in ("text.pb", "text.keras", "text.h5"):
        (tmp_path / text).write_text("not a model\n" * 50)
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError) as caught:
        inspect(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbered_labels_differ_in_name_and_colour() -> None:
    """A mask of unnamed classes must still be readable."""
    labels = numbered_labels(256)
    assert len(set(labels.names)) == len(set(labels.colours)) == 256
