import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest

from edge import cli
from edge.config import EdgeConfig
from edge.sinks.bag import BagSink
from edge.sinks.jsonl import RESULTS_NAME, JsonLinesSink
from edge.sinks.npz import NpzSink
from edge.sinks.png import PngSink
from edge.sinks.sink import SINKS, FrameResult, Sink, SinkEntry, SinkError, check_sinks, default_sinks
from edge.sources.source import open_source
from rosbag_tools.messages.boxes import read_boxes
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.records import Message
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Classification, Detections, Result, Tensors
from tests.full_disk import disk_of

HEIGHT, WIDTH = 48, 64
GEOMETRY = plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
BOXES = np.array([[60.5, 20, 100, 60.25], [90, 30, 110, 90]], np.float32)
SCORES = np.array([0.9, 0.3], np.float32)
RESULTS: dict[Task, Result] = {
    Task.SEGMENTATION: np.repeat(np.array([0, 1, 1, 255], np.uint8), HEIGHT * WIDTH // 4).reshape(HEIGHT, WIDTH),
    Task.CLASSIFICATION: Classification((1, 0), (float(SCORES[0]), 0.125)),
    Task.DETECTION: Detections(BOXES, np.array([1, 7], np.uint16), SCORES),
    Task.TENSORS: Tensors({"file": np.arange(6, dtype=np.float16).reshape(2, 3), "count": np.array(3, np.int64)}),
}


@pytest.fixture
def card_of(card: ModelCard) -> Callable[[Task], ModelCard]:
    """The card of a model of a task."""
    labels = Labels(("car", "Fußgänger"), ((0, 0, 255), (255, 0, 0)))
    return lambda task: replace(card, task=task, height=HEIGHT, width=WIDTH, labels=labels)


def _opened(folder: Path, card: ModelCard, *names: str) -> list[Sink]:
    return cli._sinks(EdgeConfig(vehicle="car", model="tiny", sinks=names), folder, card)  # type: ignore[arg-type]


def _answered(task: Task, sequence: int = 4) -> FrameResult:
    return FrameResult(
        camera="/cam/left/image_raw",
        sequence=sequence,
        frame_index=sequence + 1,
        stamp_ns=10**18 + 3,
        source_ns=10**18 + sequence * 10**8,
        picture=np.full((HEIGHT, WIDTH, 3), 128, np.uint8),
        result=RESULTS[task],
        geometry=GEOMETRY,
        model_version="3",
        engine="openvino bf16",
    )


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RESULTS_NAME).read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task.SEGMENTATION, {"classes": {"car": 0.25, "Fußgänger": 0.5, "unseen": 0.25}}),
        (
            Task.CLASSIFICATION,
            {
                "classes": [
                    {"name": "Fußgänger", "id": 1, "score": float(SCORES[0])},
                    {"name": "car", "id": 0, "score": 0.125},
                ]
            },
        ),
        (
            Task.DETECTION,
            {
                "frame": [2 * HEIGHT, 3 * WIDTH],
                "detections": [
                    {"name": "Fußgänger", "id": 1, "score": float(SCORES[0]), "box": [60.5, 20.0, 100.0, 60.25]},
                    {"name": "class-7", "id": 7, "score": float(SCORES[1]), "box": [90.0, 30.0, 110.0, 90.0]},
                ],
            },
        ),
        (
            Task.TENSORS,
            {"tensors": {"file": {"dtype": "float16", "shape": [2, 3]}, "count": {"dtype": "int64", "shape": []}}},
        ),
    ],
)
def test_a_line_tells_all_of_a_frame(
    card_of: Callable[[Task], ModelCard], tmp_path: Path, task: Task, told: dict[str, Any]
) -> None:
    """A program joins it with the log by the sequence, and reads every score to its last bit."""
    sink = JsonLinesSink(tmp_path, card_of(task))
    sink.write(_answered(task))
    sink.write(_answered(task, 2))
    sink.close()
    first, second = _lines(tmp_path)
    assert first == {
        "camera": "/cam/left/image_raw",
        "index": 5,
        "sequence": 4,
        "stamp_ns": 10**18 + 3,
        "task": task,
        "model": "tiny",
        "version": "3",
        "engine": "openvino bf16",
        **told,
    }
    assert second["sequence"] == 2


def test_lines_are_whole_while_the_run_goes_on(card_of: Callable[[Task], ModelCard], tmp_path: Path) -> None:
    """A kill leaves no half line, and who looks in sees what is there."""
    sink = JsonLinesSink(tmp_path, card_of(Task.DETECTION))
    for sequence in range(3):
        sink.write(_answered(Task.DETECTION, sequence))
        assert len(_lines(tmp_path)) == sequence + 1
    sink.close()


def test_lines_that_cannot_be_written_are_told(card_of: Callable[[Task], ModelCard], tmp_path: Path) -> None:
    """At the start where the place is wrong, later where the disk is full."""
    (tmp_path / RESULTS_NAME).mkdir()
    with pytest.raises(SinkError, match="Is a directory: choose another --out"):
        JsonLinesSink(tmp_path, card_of(Task.DETECTION))
    (tmp_path / "full").mkdir()
    sink = JsonLinesSink(tmp_path / "full", card_of(Task.DETECTION))
    with disk_of(100), pytest.raises(SinkError, match="make room or choose another --out"):
        sink.write(_answered(Task.DETECTION))
    sink.close()


def test_a_sink_that_cannot_be_opened_leaves_none_open(
    card_of: Callable[[Task], ModelCard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does not begin, and nobody would close the others."""
    monkeypatch.setitem(SINKS, "npz", SinkEntry("edge.sinks.none:Sink", "edge"))
    with pytest.raises(ImportError):
        cli._sinks(EdgeConfig(vehicle="car", model="tiny", sinks=("jsonl", "npz")), tmp_path, card_of(Task.TENSORS))
    assert (tmp_path / RESULTS_NAME).exists()
    assert [file for file in psutil.Process().open_files() if Path(file.path).parent == tmp_path] == []


def test_tensors_are_kept_as_the_model_gave_them(card_of: Callable[[Task], ModelCard], tmp_path: Path) -> None:
    """Under any name a manifest allows, and without pickles."""
    NpzSink(tmp_path, card_of(Task.TENSORS)).write(_answered(Task.TENSORS))
    with np.load(tmp_path / "tensors" / "cam_left_image_raw" / "000005.npz") as kept:
        assert sorted(kept) == ["count", "file"]
        assert (kept["file"].dtype, kept["count"].dtype) == (np.float16, np.int64)
        np.testing.assert_array_equal(kept["file"], np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("task", [Task.CLASSIFICATION, Task.DETECTION, Task.TENSORS])
def test_pictures_of_every_task_are_wide_enough_to_read(
    card_of: Callable[[Task], ModelCard], tmp_path: Path, task: Task
) -> None:
    """A model's input may be as small as a stamp; text on it would hide it."""
    sinks = _opened(tmp_path, card_of(task), "overlay", "png", "video")
    for sink in sinks:
        sink.write(_answered(task))
        sink.close()
    overlay: Any = cv2.imread(str(tmp_path / "overlays" / "cam_left_image_raw_000004.jpg"))
    png: Any = cv2.imread(str(tmp_path / "pictures" / "cam_left_image_raw" / "000005.png"))
    (film,) = open_source(str(tmp_path / "overlay_cam_left_image_raw.webm")).frames()
    assert overlay.shape == png.shape == (360, 480, 3)
    assert film.pixels.shape == (360, 960, 3)  # type: ignore[union-attr]
    for picture in (overlay, png):
        share = (abs(picture.astype(int) - 128) > 20).any(axis=-1).mean()
        assert 0.005 < share < 0.5


@pytest.mark.parametrize("task", [Task.CLASSIFICATION, Task.DETECTION])
def test_pictures_of_untrained_weights_say_so(card_of: Callable[[Task], ModelCard], tmp_path: Path, task: Task) -> None:
    """They are passed on without their run."""
    for trained in (True, False):
        PngSink(tmp_path / str(trained), replace(card_of(task), trained=trained)).write(_answered(task))
    first, second = (next((tmp_path / name).rglob("*.png")).read_bytes() for name in ("True", "False"))
    assert first != second


def test_boxes_in_a_bag_lie_on_the_frame_with_its_stamp(card_of: Callable[[Task], ModelCard], tmp_path: Path) -> None:
    """A viewer shows both together only so; names and scores are ROS's own."""
    sink = BagSink(tmp_path, card_of(Task.DETECTION))
    sink.write(_answered(Task.DETECTION))
    sink.close()
    with Bag(tmp_path / "detections_bag") as bag:
        (message,) = bag.messages()
        assert isinstance(message, Message)
        boxes = read_boxes(message)
    assert message.channel.topic == "/cam/left/detections"
    assert [box.name for box in boxes] == ["Fußgänger", "class-7"]
    corners = [[box.x, box.y, box.x + box.width, box.y + box.height] for box in boxes]
    np.testing.assert_array_equal(corners, BOXES)


@pytest.mark.parametrize("task", Task)
def test_the_sinks_of_a_task_hold_its_results(card_of: Callable[[Task], ModelCard], tmp_path: Path, task: Task) -> None:
    """Those that are taken where nobody says, and all that the table offers."""
    card = card_of(task)
    check_sinks(default_sinks(task), card)
    for name, entry in SINKS.items():
        if task in entry.tasks:
            folder = tmp_path / name
            folder.mkdir()
            (sink,) = _opened(folder, card, name)
            sink.write(_answered(task))
            sink.close()
            assert any(path.is_file() for path in folder.rglob("*"))


def test_a_sink_of_another_task_is_refused_by_name(card_of: Callable[[Task], ModelCard]) -> None:
    """Before the run begins, with those that would do."""
    with pytest.raises(SinkError, match="sink npz holds tensors, model tiny answers segmentation: use png, video"):
        check_sinks(("png", "npz"), card_of(Task.SEGMENTATION))
    with pytest.raises(SinkError, match="sink bag holds segmentation or detection, model tiny answers classification"):
        check_sinks(("bag",), card_of(Task.CLASSIFICATION))
