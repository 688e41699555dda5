from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from modelling.conversion.conversion import convert
from modelling.inspection import image_run
from modelling.inspection.inspection import Inspection, inspect, write
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.inference.engine import EngineError
from shared.inference.model import open_local
from shared.messages.results import Detections
from shared.models.manifest import DetectionSection, Placement
from shared.models.repository import Repository
from shared.tasks.detection import objects
from tests.support.foreign_models import onnx_constants, tflite_detector

_SIDE = 64
_IMAGE = np.full((_SIDE, _SIDE, 3), 99, np.uint8)
# Two overlapping boxes of one class, which a second suppression would reduce to one, a weak box and two empty slots.
_OUTPUTS: dict[str, Any] = {
    "detection_boxes": [[[0.1, 0.2, 0.5, 0.6], [0.1, 0.2, 0.5, 0.55], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]],
    "detection_scores": [[0.9, 0.8, 0.1, 0.0, 0.0]],
    "detection_classes": [[3.0, 3.0, 1.0, 1.0, 1.0]],
}


def _graph(images: Any, count: int = 5) -> dict[str, Any]:
    zero = tf.reduce_mean(tf.cast(images, tf.float32), (1, 2, 3)) * 0.0
    found = {
        name: tf.constant(values, tf.float32) + tf.reshape(zero, (-1,) + (1,) * (np.ndim(values) - 1))
        for name, values in _OUTPUTS.items()
    }
    # As the exporter of TensorFlow 2 does: the same detector before its suppression.
    found["raw_detection_boxes"] = tf.zeros((1, 90, 4)) + tf.reshape(zero, (-1, 1, 1))
    found["raw_detection_scores"] = tf.zeros((1, 90, 7)) + tf.reshape(zero, (-1, 1, 1))
    return {**found, "num_detections": zero + count}


def _frozen(path: Path) -> None:
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.uint8, (None, None, None, 3), "image_tensor")
        for name, tensor in _graph(images).items():
            tf.identity(tensor, name)
    path.write_bytes(graph.as_graph_def().SerializeToString())


def _saved(path: Path) -> None:
    signature = tf.function(_graph, autograph=False).get_concrete_function(
        tf.TensorSpec((1, None, None, 3), tf.uint8, name="input_tensor")
    )
    tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": signature})


def _onnx(path: Path) -> None:
    onnx_constants(
        path,
        {name: np.array(values, np.float32) for name, values in _OUTPUTS.items()}
        | {"num_detections": np.array([5], np.float32)},
    )


def _run(root: Path, engine: str | None, name: str = "m") -> Detections:
    with ModelLoader(Repository(root), engine=engine).open(name) as model:
        result = image_run.run(model, _IMAGE).result
    assert isinstance(result, Detections)
    return result


def _written(path: Path, root: Path, size: tuple[int, int] | None) -> Inspection:
    found = inspect(path, size=size)
    write(found, root / "m")
    return found


@pytest.mark.parametrize(
    ("file", "build", "engines"),
    [
        ("m.pb", _frozen, ("tensorflow", "openvino")),
        ("saved", _saved, ("tensorflow", "openvino")),
        ("m.onnx", _onnx, ("onnxruntime", "openvino")),
    ],
)
def test_boxes_of_the_object_detection_api_are_detections(
    tmp_path: Path, file: str, build: Callable[[Path], None], engines: tuple[str, ...]
) -> None:
    """Classes are numbered from 1, boxes are y before x and relative, and nothing is suppressed again."""
    build(tmp_path / file)
    found = _written(tmp_path / file, tmp_path / "models", None if file == "m.onnx" else (_SIDE, _SIDE))
    assert list(found.manifest.outputs) == ["scores", "boxes", "classes", "count"]
    assert any("classes from 1" in note for note in found.notes)
    for engine in engines:
        if engine == "openvino":
            pytest.importorskip("openvino")
        result = _run(tmp_path / "models", engine)
        np.testing.assert_allclose(
            result.boxes, np.array([[0.2, 0.1, 0.6, 0.5], [0.2, 0.1, 0.55, 0.5]]) * _SIDE, atol=1e-3
        )
        assert (result.class_ids.tolist(), result.scores.tolist()) == ([2, 2], pytest.approx([0.9, 0.8]))
        assert found.manifest.labels[2].name == "class-3"


def test_a_converted_detector_gives_the_same_boxes(tmp_path: Path) -> None:
    """Conversion keeps the four outputs and the number of the first class."""
    _frozen(tmp_path / "m.pb")
    _written(tmp_path / "m.pb", tmp_path / "models", (_SIDE, _SIDE))
    repository = Repository(tmp_path / "models")
    for target in ("onnx", "saved_model"):
        assert convert(repository, "m", target, _IMAGE[np.newaxis], new_name=target).agreement == 1.0
        np.testing.assert_array_equal(_run(repository.root, None, target).class_ids, [2, 2])


def test_boxes_of_tensorflow_lites_operation_are_detections(tmp_path: Path) -> None:
    """The order of the operation's outputs shows their meaning, whatever their names; a vehicle runs it too."""
    scores = np.zeros((4, 6), np.float32)
    scores[0, 3], scores[2, 1], scores[3, 5] = 0.9, 0.6, 0.2
    tflite_detector(tmp_path / "m.tflite", scores)
    found = _written(tmp_path / "m.tflite", tmp_path / "models", None)
    assert found.manifest.detection.first_class == 0
    result = _run(tmp_path / "models", None)
    assert (result.class_ids.tolist(), result.scores.tolist()) == ([2, 0], pytest.approx([0.9, 0.6]))
    np.testing.assert_allclose(result.boxes[0], np.array([0.05, 0.45, 0.15, 0.55]) * _SIDE, atol=0.1)
    with open_local(Repository(tmp_path / "models").find("m"), Placement(device="cpu")) as model:
        assert set(model.infer(_IMAGE[np.newaxis])) == {"boxes", "scores", "classes", "count"}


def test_a_class_without_a_label_is_an_error(tmp_path: Path) -> None:
    """Labels of another data set are too few sooner or later; a frame must not get a wrong name."""
    _frozen(tmp_path / "m.pb")
    labels = Labels(("person", "bicycle"), ((1, 1, 1), (2, 2, 2)))
    found = inspect(tmp_path / "m.pb", size=(_SIDE, _SIDE), labels=labels)
    with pytest.raises(SkylaneError, match="answers class 3, and its labels name 1 to 2"):
        write(found, tmp_path / "models" / "m")
    assert not (tmp_path / "models" / "m").exists()


def test_labels_that_begin_with_the_background_name_class_0(tmp_path: Path) -> None:
    """Both kinds of label files exist; off by one, every name would be wrong."""
    _frozen(tmp_path / "m.pb")
    labels = Labels(("__background__", "person", "bicycle", "car"), ((0, 0, 0),) * 4)
    found = inspect(tmp_path / "m.pb", size=(_SIDE, _SIDE), labels=labels)
    assert found.manifest.detection.first_class == 0
    write(found, tmp_path / "models" / "m")
    assert _run(tmp_path / "models", None).class_ids.tolist() == [3, 3]
    tflite_detector(tmp_path / "m.tflite", np.eye(4, 6, dtype=np.float32))
    with pytest.raises(EngineError, match="remove that label"):
        inspect(tmp_path / "m.tflite", labels=labels)


@pytest.mark.parametrize(
    ("count", "first_class", "classes"),
    [(5, 1, [2, 2]), (1, 1, [2]), (0, 1, []), (99, 1, [2, 2]), (-1, 1, []), (5, 3, [0, 0])],
)
def test_the_count_and_the_first_class_apply(count: float, first_class: int, classes: list[int]) -> None:
    """Slots after the count hold anything."""
    manifest: Any = SimpleNamespace(
        detection=DetectionSection(first_class=first_class),
        input=SimpleNamespace(height=_SIDE, width=_SIDE),
        labels=[None] * 5,
    )
    boxes, scores, numbers = (np.array(values[0], np.float32) for values in _OUTPUTS.values())
    outputs = {
        "boxes": boxes[:, [1, 0, 3, 2]] * _SIDE,
        "scores": scores,
        "classes": numbers,
        "count": np.float32(count),
    }
    found = objects(outputs, plan(Resize.STRETCH, *(_SIDE,) * 4), manifest)
    assert found.class_ids.tolist() == classes


def test_outputs_of_different_selections_are_an_error() -> None:
    """A manifest may name the scores before the suppression with the boxes after it."""
    manifest: Any = SimpleNamespace(
        detection=DetectionSection(), input=SimpleNamespace(height=_SIDE, width=_SIDE), labels=[None] * 5
    )
    outputs = {"boxes": np.zeros((5, 4)), "scores": np.zeros(90), "classes": np.zeros(5)}
    with pytest.raises(SkylaneError, match="gives 5 boxes, 90 scores, 5 classes"):
        objects(outputs, plan(Resize.STRETCH, *(_SIDE,) * 4), manifest)
