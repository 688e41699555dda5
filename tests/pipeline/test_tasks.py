"""End-to-end runs of every task: the vehicle writes exactly the model's results."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rich.console import Console

from analysis.report.document import write_report
from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from edge.config import EdgeConfig
from edge.run import run
from shared.errors import SkylaneError
from shared.imaging import geometry
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.results import Classification, Detections, Tensors
from shared.messages.topics import FrameId
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from shared.task import task_named
from tests.pipeline.rig import HEIGHT, WIDTH, check, noise, worker
from tests.support.model_folder import write_model

NAMES = ("car", "person", "bicycle", "sign")
STRIDE = 16
FRAMES = 6
_RANDOM = np.random.default_rng(7)
_WEIGHTS = _RANDOM.normal(size=(STRIDE, STRIDE, 3, 16)).astype(np.float32) / 50
HEADS: dict[str, dict[str, Any]] = {
    "weather": {"task": "classification", "output": {"tensor": "scores:0", "kind": "logits"}, "top_k": 3},
    "things": {
        "task": "detection",
        "outputs": {
            "boxes": {"tensor": "boxes:0", "kind": "boxes"},
            "scores": {"tensor": "scores:0", "kind": "logits"},
        },
        "box_format": {"order": "cxcywh", "normalised": True},
        "detection": {"score_threshold": 0.4, "iou_threshold": 0.3, "max_detections": 20},
        "input": {"resize": "letterbox"},
    },
    "inside": {
        "task": "tensors",
        "outputs": {name: {"tensor": f"{name}:0", "kind": "tensor"} for name in ("features", "half", "winner")},
    },
}


def _features(images: Any) -> Any:
    """Returns features N×4×6×16 float32."""
    return tf.nn.conv2d(tf.cast(images, tf.float32) / 255.0 - 0.5, _WEIGHTS, STRIDE, "VALID")


def _heads(images: Any) -> Mapping[str, Any]:
    """Returns the outputs of all models; each uses some of them."""
    features = _features(images)
    flat = tf.reshape(features, (-1, features.shape[1] * features.shape[2], 16))
    centres = np.stack(np.meshgrid(np.arange(6) + 0.5, np.arange(4) + 0.5), -1).reshape(-1, 2) / (6, 4)
    grid = tf.constant(centres.astype(np.float32))
    boxes = tf.concat((grid + flat[..., 4:6] / 20, 0.1 + 0.4 * tf.nn.sigmoid(flat[..., 6:8])), -1)
    return {
        "boxes": boxes,
        "scores": flat[..., :4] * 3,
        "mean": tf.reduce_mean(flat, 1)[:, :4] * 30,
        "features": features,
        "half": tf.cast(flat[..., :3], tf.float16),
        "winner": tf.argmax(flat, -1),
    }


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Returns a repository with a 64×96 model for each task except segmentation."""
    root = tmp_path_factory.mktemp("models")
    for name, settings in HEADS.items():
        graph = tf.Graph()
        with graph.as_default():
            outputs = dict(_heads(tf.compat.v1.placeholder(tf.uint8, (None, HEIGHT, WIDTH, 3), "input")))
            if name == "weather":
                outputs["scores"] = outputs["mean"]
            for head, tensor in outputs.items():
                tf.identity(tensor, head)
        labels = [{"name": label, "colour": [60 * i, 0, 255 - 60 * i]} for i, label in enumerate(NAMES)]
        keys = {} if settings["task"] == "tensors" else {"labels": labels}
        image = {"tensor": "input:0", "height": HEIGHT, "width": WIDTH} | settings.get("input", {})
        given = {"format": "frozen_graph", "warm_up": {"runs": 1}, **keys, **settings, "input": image}
        write_model(root / name, "model.pb", graph.as_graph_def().SerializeToString(), **given)
    return Repository(root)


@pytest.fixture(scope="module")
def models(repository: Repository) -> Iterator[dict[str, Model]]:
    """Loads these models; the worker and direct calls share them."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(ModelLoader(repository).open(name)) for name in repository.names()}


@dataclass(frozen=True)
class Road:
    """Six frames, a broker, and the models."""

    url: str
    frames: Path
    folder: Path
    models: Mapping[str, Model]

    def play(self, name: str, *, code: int = 0, **settings: Any) -> Path:
        """Runs `skylane edge play` with a worker that serves a model, checks the exit code, and returns the folder of the run."""
        out, printed = self.folder / f"car-{name}-{len(list(self.folder.iterdir()))}", StringIO()
        config = EdgeConfig(
            broker=self.url, vehicle=out.name, model=name, out=out, closed_loop=True, codec="raw", **settings
        )
        with worker(self.url, self.models[name]):
            assert run(str(self.frames), config, Console(file=printed, width=160)) == code, printed.getvalue()
        check(list(read_rows(out)))
        return out


@pytest.fixture
def road(mosquitto_url: str, models: dict[str, Model], tmp_path: Path) -> Road:
    """Returns frames of twice the height and three times the width of the models' input."""
    frames = tmp_path / "frames"
    frames.mkdir()
    for index in range(FRAMES):
        cv2.imwrite(str(frames / f"{index}.png"), _frame(index)[..., ::-1])
    return Road(mosquitto_url, frames, tmp_path, models)


def _frame(index: int) -> Any:
    """Returns an RGB image of cells as large as those of the models."""
    coarse = noise(index, (8, 18, 3))
    return np.ascontiguousarray(coarse.repeat(16, axis=0).repeat(16, axis=1))


def _direct(model: Model, index: int, *, options: RequestOptions = RequestOptions(), resize: str | None = None) -> Any:  # noqa: B008  Frozen.
    """Returns the result of the model, called directly."""
    rgb, card = _frame(index), model.card
    height, width = rgb.shape[:2]
    plan = geometry.plan(Resize(resize or card.resize), height, width, HEIGHT, WIDTH)
    outputs = model.infer(np.ascontiguousarray(geometry.apply(rgb, plan))[None])
    message = FrameMessage(
        FrameId("a", "b", "c", 0), card.name, Layout.RGB8, (HEIGHT, WIDTH, 3), "raw", plan, 0, b"", options=options
    )
    return task_named(card.task).result({head: values[0] for head, values in outputs.items()}, message, model.manifest)


def _lines(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == list(range(FRAMES))
    return lines


@pytest.mark.parametrize(("top_k", "count"), [(None, 3), (2, 2)])
def test_classes_and_scores_are_the_models(road: Road, top_k: int | None, count: int) -> None:
    """Their number comes from the vehicle, or else from the model's manifest."""
    out = road.play("weather", top_k=top_k)
    for line in _lines(out):
        expected = _direct(road.models["weather"], line["index"], options=RequestOptions(top_k=top_k))
        assert isinstance(expected, Classification)
        assert [each["id"] for each in line["classes"]] == list(expected.class_ids)
        assert [each["score"] for each in line["classes"]] == list(expected.scores)
        assert [each["name"] for each in line["classes"]] == [NAMES[class_id] for class_id in expected.class_ids]
        assert (len(expected.scores), line["engine"], line["version"]) == (count, "tensorflow fp32", "1")
    assert len(list((out / "overlays").glob("*.jpg"))) == FRAMES


@pytest.mark.parametrize(("resize", "resize_at"), [("letterbox", "edge"), ("crop", "cloud"), ("stretch", "cloud")])
def test_boxes_are_in_pixels_of_the_frame(road: Road, resize: str, resize_at: str) -> None:
    """This holds for every resize mode at either node."""
    out = road.play("things", resize=resize, resize_at=resize_at, sinks=("jsonl",))
    found: Counter[str] = Counter()
    for line in _lines(out):
        expected = _direct(road.models["things"], line["index"], resize=resize)
        assert isinstance(expected, Detections)
        assert line["frame"] == [2 * HEIGHT, 3 * WIDTH]
        assert [each["box"] for each in line["detections"]] == expected.boxes.tolist()
        assert [each["score"] for each in line["detections"]] == expected.scores.tolist()
        assert [each["id"] for each in line["detections"]] == expected.class_ids.tolist()
        found.update(each["name"] for each in line["detections"])
    assert len(found) > 1
    assert found.total() > FRAMES


@pytest.mark.parametrize(("outputs", "codec"), [((), "zstd"), (("half",), "raw"), (("winner", "features"), "zstd")])
def test_only_the_requested_outputs_are_returned(road: Road, outputs: tuple[str, ...], codec: str) -> None:
    """Their values are unchanged."""
    out = road.play("inside", outputs=outputs, mask_codec=codec)
    for line in _lines(out):
        expected = _direct(road.models["inside"], line["index"], options=RequestOptions(outputs=outputs))
        assert isinstance(expected, Tensors)
        assert list(line["tensors"]) == list(outputs or ("features", "half", "winner"))
        with np.load(out / "tensors" / "frames" / f"{line['index']:06d}.npz") as kept:
            assert set(kept) == set(expected.values)
            for name, array in expected.values.items():
                assert kept[name].dtype == array.dtype
                np.testing.assert_array_equal(kept[name], array)


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("inside", {"outputs": ("half", "speed")}, "has no output speed: ask for features, half, winner"),
        ("things", {"outputs": ("half",)}, "only models of raw tensors have named outputs"),
        ("weather", {"top_k": 100}, "classes, not 100: ask for fewer"),
        ("weather", {"mask_codec": "png"}, "no classification codec 'png': ask for raw, lz4, zstd"),
    ],
)
def test_unsupported_options_are_refused_before_the_run(
    road: Road, model: str, settings: dict[str, Any], reason: str
) -> None:
    """The message names what the model supports."""
    with pytest.raises(SkylaneError, match=reason):
        road.play(model, **settings)
    assert not list(road.folder.glob("car-*"))


def test_a_report_can_be_written_for_other_tasks(road: Road) -> None:
    """It uses the images that the run has written."""
    out = road.play("things", sinks=("overlay", "video", "bag"))
    assert "things" in write_report([out]).read_text(encoding="utf-8")
