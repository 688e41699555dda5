"""Sinks for the results of every task."""

import json
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from rosbags.rosbag2 import Reader

from edge.config import EdgeConfig
from edge.run import open_sinks
from edge.sinks.bag import BagSink
from edge.sinks.image_sinks import NpzSink, OverlaySink, PngSink
from edge.sinks.jsonl import RESULTS_NAME, JsonLinesSink
from edge.sinks.sink import SINKS, FrameResult, Sink, SinkEntry, SinkError
from edge.sinks.writer import check_sinks
from edge.sources.source import open_source
from rosbag_tools.messages.ros_types import read_boxes
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from shared.errors import SkylaneError
from shared.imaging.frames import Frame
from shared.imaging.geometry import Resize, plan, to_source
from shared.imaging.labels import Labels, colourise
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections, Result, Tensors
from shared.task import TASKS, task_named
from tests.edge.samples import CARD
from tests.full_disk import disk_of

HEIGHT, WIDTH = 48, 64
GEOMETRY = plan(Resize.CROP, 2 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
BOXES = np.array([[60.5, 20, 100, 60.25], [90, 30, 110, 90]], np.float32)
SCORES = np.array([0.9, 0.3], np.float32)
RESULTS: dict[str, Result] = {
    "segmentation": np.repeat(np.array([0, 1, 1, 255], np.uint8), HEIGHT * WIDTH // 4).reshape(HEIGHT, WIDTH),
    "classification": Classification((1, 0), (float(SCORES[0]), 0.125)),
    "detection": Detections(BOXES, np.array([1, 7], np.uint16), SCORES),
    "tensors": Tensors({"file": np.arange(6, dtype=np.float16).reshape(2, 3), "count": np.array(3, np.int64)}),
}


def card_of(task: str) -> ModelCard:
    """Makes the card of a model for a task."""
    labels = Labels(("car", "Fußgänger"), ((0, 0, 255), (255, 0, 0)))
    return replace(CARD, task=task, height=HEIGHT, width=WIDTH, labels=labels)


def _open(folder: Path, card: ModelCard, *names: str) -> list[Sink]:
    return open_sinks(EdgeConfig(vehicle="car", model="tiny", sinks=names), folder, card)


def _result(task: str, sequence: int = 4) -> FrameResult:
    return FrameResult(
        camera="/cam/left/image_raw",
        sequence=sequence,
        frame_index=sequence + 1,
        stamp_ns=10**18 + 3,
        source_ns=10**18 + sequence * 10**8,
        image=np.full((HEIGHT, WIDTH, 3), 128, np.uint8),
        result=RESULTS[task],
        geometry=GEOMETRY,
        model_version="3",
        engine="openvino bf16",
    )


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RESULTS_NAME).read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("segmentation", {"classes": {"car": 0.25, "Fußgänger": 0.5, "unseen": 0.25}}),
        (
            "classification",
            {
                "classes": [
                    {"name": "Fußgänger", "id": 1, "score": float(SCORES[0])},
                    {"name": "car", "id": 0, "score": 0.125},
                ]
            },
        ),
        (
            "detection",
            {
                "frame": [2 * HEIGHT, 3 * WIDTH],
                "detections": [
                    {"name": "Fußgänger", "id": 1, "score": float(SCORES[0]), "box": [60.5, 20.0, 100.0, 60.25]},
                    {"name": "class-7", "id": 7, "score": float(SCORES[1]), "box": [90.0, 30.0, 110.0, 90.0]},
                ],
            },
        ),
        (
            "tensors",
            {"tensors": {"file": {"dtype": "float16", "shape": [2, 3]}, "count": {"dtype": "int64", "shape": []}}},
        ),
    ],
)
def test_a_line_contains_the_whole_result(tmp_path: Path, task: str, fields: dict[str, Any]) -> None:
    """A program can join it with the latency log by sequence, and scores keep all digits."""
    sink = JsonLinesSink(tmp_path, card_of(task))
    sink.write(_result(task))
    sink.write(replace(_result(task, 2), reused_sequence=0))
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
        "origin": "worker",
        **fields,
    }
    assert (second["sequence"], second["reused_sequence"]) == (2, 0)


def test_the_png_sink_writes_class_ids_and_colours(tmp_path: Path) -> None:
    """The class ids are unchanged."""
    card, frame = card_of("segmentation"), _result("segmentation")
    PngSink(tmp_path, card).write(frame)
    ids: Any = cv2.imread(str(tmp_path / "masks" / "cam_left_image_raw" / "000005.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(ids, frame.result)
    colours: Any = cv2.imread(str(tmp_path / "masks_colour" / "cam_left_image_raw" / "000005.png"))
    np.testing.assert_array_equal(colours[..., ::-1], colourise(frame.result, card.labels))


def test_overlays_are_small_and_named_by_camera_and_sequence(tmp_path: Path) -> None:
    """A report finds the image of a frame by its row, and contains several of them."""
    pixels, mask = np.full((608, 968, 3), 100, np.uint8), np.ones((608, 968), np.uint8)
    card = card_of("segmentation")
    OverlaySink(tmp_path, card).write(replace(_result("segmentation"), image=pixels, result=mask))
    image: Any = cv2.imread(str(tmp_path / "overlays" / "cam_left_image_raw_000004.jpg"))
    assert image.shape == (301, 480, 3)
    np.testing.assert_allclose(image[150, 240, ::-1], np.array(card.labels.colours[1]) / 2 + 50, atol=6)


def test_a_mask_of_the_frames_size_is_cropped_to_the_models_input(tmp_path: Path) -> None:
    """Otherwise the mask would not match the image."""
    small = _result("segmentation")
    large = replace(small, result=to_source(small.result, GEOMETRY, 255))
    for name, frame in (("small", small), ("large", large)):
        OverlaySink(tmp_path / name, card_of("segmentation")).write(frame)
    one, other = (next((tmp_path / name / "overlays").iterdir()).read_bytes() for name in ("small", "large"))
    assert one == other


def test_masks_in_a_bag_have_the_size_and_stamp_of_their_frame(tmp_path: Path) -> None:
    """A viewer needs both to show them together."""
    answered = _result("segmentation")
    sink = BagSink(tmp_path, card_of("segmentation"))
    sink.write(answered)
    sink.close()
    with closing(open_source(str(tmp_path / "masks_bag"), topics=("/cam/left/masks",))) as source:
        (frame,) = source.frames()
    assert isinstance(frame, Frame)
    np.testing.assert_array_equal(frame.pixels, to_source(answered.result, GEOMETRY, 255))
    assert (frame.stamp_ns, frame.source_ns) == (answered.stamp_ns, answered.source_ns)


def test_a_bag_of_masks_is_compressed_in_chunks(tmp_path: Path) -> None:
    """Masks are large areas of few values; a bag of them filled a disk that held the recording a hundred times.

    The compression is MCAP's own, of chunks, so that the metadata names none and every reader of MCAP can open the file.
    """
    sink = BagSink(tmp_path, card_of("segmentation"))
    results = [_result("segmentation", sequence) for sequence in range(200)]
    for result in results:
        sink.write(result)
    sink.close()
    with Reader(tmp_path / "masks_bag") as reader:  # The library's reader, without ours.
        stored = [data for _, _, data in reader.messages()]
        assert reader.compression_mode in {None, ""}
    assert len(stored) == 200
    (file,) = (tmp_path / "masks_bag").glob("*.mcap")
    assert file.stat().st_size < sum(map(len, stored)) / 10
    with Bag(tmp_path / "masks_bag") as bag:
        assert [message.time_ns for message in bag.messages()] == [result.source_ns for result in results]


def test_lines_are_complete_during_the_run(tmp_path: Path) -> None:
    """A killed run leaves no partial line, and other programs can follow the file."""
    sink = JsonLinesSink(tmp_path, card_of("detection"))
    for sequence in range(3):
        sink.write(_result("detection", sequence))
        assert len(_lines(tmp_path)) == sequence + 1
    sink.close()


@pytest.mark.parametrize(
    ("sink", "name", "problem"),
    [
        (PngSink, "masks", "Not a directory"),
        (OverlaySink, "overlays", "exists and is not a folder"),
        (JsonLinesSink, RESULTS_NAME, "exists already"),
    ],
)
def test_a_write_error_says_what_to_do(tmp_path: Path, sink: Callable[..., Sink], name: str, problem: str) -> None:
    """Something else has the name of a file or folder."""
    in_the_way = tmp_path / name
    in_the_way.mkdir() if name == RESULTS_NAME else in_the_way.touch()
    with pytest.raises(SinkError, match=f"{problem}: choose another --out"):
        sink(tmp_path, card_of("segmentation")).write(_result("segmentation"))


@pytest.mark.parametrize(
    ("sink", "name"),
    [("jsonl", RESULTS_NAME), ("rerun", "run.rrd"), ("foxglove", "run.mcap"), ("video", "overlay_*.webm")],
)
def test_no_file_is_replaced(tmp_path: Path, sink: str, name: str) -> None:
    """Neither that of another run, nor anything else in a folder."""

    def run() -> None:
        (opened,) = _open(tmp_path, card_of("segmentation"), sink)
        with closing(opened):
            opened.write(_result("segmentation"))

    run()
    (path,) = tmp_path.glob(name)
    before = path.read_bytes()
    with pytest.raises(SinkError, match=r"exists already: choose another --out"):
        run()
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """An incomplete line counts as one, too."""
    sink = JsonLinesSink(tmp_path, card_of("detection"))
    with disk_of(100), pytest.raises(SinkError, match="make room or choose another --out"):
        sink.write(_result("detection"))
    sink.close()


def test_a_sink_that_cannot_be_opened_closes_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run does not begin, so nothing else would close them."""
    monkeypatch.setitem(SINKS, "npz", SinkEntry("edge.sinks.none:Sink", "edge"))
    with pytest.raises(ImportError):
        open_sinks(EdgeConfig(vehicle="car", model="tiny", sinks=("jsonl", "npz")), tmp_path, card_of("tensors"))
    assert (tmp_path / RESULTS_NAME).exists()
    assert [file for file in psutil.Process().open_files() if Path(file.path).parent == tmp_path] == []


def test_tensors_are_written_unchanged(tmp_path: Path) -> None:
    """Any tensor name works, and the file needs no pickle."""
    NpzSink(tmp_path, card_of("tensors")).write(_result("tensors"))
    with np.load(tmp_path / "tensors" / "cam_left_image_raw" / "000005.npz") as kept:
        assert sorted(kept) == ["count", "file"]
        assert (kept["file"].dtype, kept["count"].dtype) == (np.float16, np.int64)
        np.testing.assert_array_equal(kept["file"], np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("task", ["classification", "detection", "tensors"])
def test_images_with_text_are_wide_enough_to_read(tmp_path: Path, task: str) -> None:
    """A small model input would be covered by the text."""
    sinks = _open(tmp_path, card_of(task), "overlay", "png", "video")
    for sink in sinks:
        sink.write(_result(task))
        sink.close()
    overlay: Any = cv2.imread(str(tmp_path / "overlays" / "cam_left_image_raw_000004.jpg"))
    png: Any = cv2.imread(str(tmp_path / "pictures" / "cam_left_image_raw" / "000005.png"))
    (video_frame,) = open_source(str(tmp_path / "overlay_cam_left_image_raw.webm")).frames()
    assert overlay.shape == png.shape == (360, 480, 3)
    assert video_frame.pixels.shape == (360, 960, 3)  # type: ignore[union-attr]
    for image in (overlay, png):
        share = (abs(image.astype(int) - 128) > 20).any(axis=-1).mean()
        assert 0.005 < share < 0.5


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection"])
@pytest.mark.parametrize("sink", [PngSink, OverlaySink])
def test_images_of_untrained_models_are_marked(tmp_path: Path, sink: Callable[..., Sink], task: str) -> None:
    """An image may be passed on without its run; only class ids stay unchanged."""
    for trained in (True, False):
        sink(tmp_path / str(trained), replace(card_of(task), trained=trained)).write(_result(task))
    for path in (path for path in (tmp_path / "True").rglob("*.*") if path.is_file()):
        is_marked = path.read_bytes() != (tmp_path / "False" / path.relative_to(tmp_path / "True")).read_bytes()
        assert is_marked is (path.parents[1].name != "masks")


def test_boxes_in_a_bag_are_in_pixels_of_their_frame(tmp_path: Path) -> None:
    """The messages are standard ROS detections with names and scores."""
    sink = BagSink(tmp_path, card_of("detection"))
    sink.write(_result("detection"))
    sink.close()
    with Bag(tmp_path / "detections_bag") as bag:
        (message,) = bag.messages()
        assert isinstance(message, Message)
        boxes = read_boxes(message)
    assert message.channel.topic == "/cam/left/detections"
    assert [box.name for box in boxes] == ["Fußgänger", "class-7"]
    corners = [[box.x, box.y, box.x + box.width, box.y + box.height] for box in boxes]
    np.testing.assert_array_equal(corners, BOXES)


@pytest.mark.parametrize("task", TASKS)
def test_every_sink_supports_the_tasks_that_the_table_lists(tmp_path: Path, task: str) -> None:
    """The default sinks of each task are among them."""
    card = card_of(task)
    check_sinks(task_named(task).sinks, card)
    for name, entry in SINKS.items():
        if entry.holds(task_named(task)):
            folder = tmp_path / name
            folder.mkdir()
            (sink,) = _open(folder, card, name)
            sink.write(_result(task))
            sink.close()
            assert any(path.is_file() for path in folder.rglob("*"))


def test_a_sink_that_does_not_support_the_task_is_refused() -> None:
    """The message names the sinks that do."""
    with pytest.raises(SinkError, match="sink npz holds tensors, model tiny answers segmentation: use png, video"):
        check_sinks(("png", "npz"), card_of("segmentation"))
    with pytest.raises(SinkError, match="sink bag holds segmentation or detection, model tiny answers classification"):
        check_sinks(("bag",), card_of("classification"))


@pytest.mark.parametrize("name", SINKS)
def test_no_sink_writes_through_a_link(name: str, tmp_path: Path) -> None:
    """An archive of a run can hold a link with the name of any file or folder of a sink."""
    task = "tensors" if name == "npz" else "segmentation"

    def write(folder: Path) -> None:
        for sink in _open(folder, card_of(task), name):
            with closing(sink):
                sink.write(_result(task))

    (tmp_path / "first").mkdir()
    write(tmp_path / "first")
    for number, written in enumerate(sorted((tmp_path / "first").rglob("*"))):
        outside, run = tmp_path / f"outside-{number}", tmp_path / f"run-{number}"
        link = run / written.relative_to(tmp_path / "first")
        link.parent.mkdir(parents=True)
        if written.is_dir():
            outside.mkdir()
        link.symlink_to(outside)  # Of a file, it leads to nothing.
        with suppress(SkylaneError):
            write(run)
        assert not (list(outside.iterdir()) if written.is_dir() else outside.exists()), link
