"""Files for viewers: what Rerun's and mcap's readers find in them, and playing one as a source."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader

from edge.config import EdgeConfig
from edge.run import open_sinks
from edge.sinks.sink import FrameResult, SinkError
from edge.sinks.writer import check_sinks
from edge.sources.source import open_source
from shared import clock
from shared.imaging.frames import Frame
from shared.imaging.geometry import Resize, plan
from shared.imaging.image_codecs import ImageLimits
from shared.imaging.image_files import decode_to_rgb
from shared.imaging.labels import Labels
from shared.messages.results import Classification, Detections, Result
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from shared.stages import CLOUD_STAGES, EDGE_STAGES
from tests.edge.samples import CARD
from tests.edge.view.watching import read_rrd
from tests.full_disk import disk_of

HEIGHT, WIDTH = 48, 64
START_NS = 10**18
GEOMETRY = plan(Resize.STRETCH, 2 * HEIGHT, 2 * WIDTH, HEIGHT, WIDTH)
MASK = np.repeat(np.array([0, 1, 1, 255], np.uint8), HEIGHT * WIDTH // 4).reshape(HEIGHT, WIDTH)
RESULTS: Mapping[str, Result] = {
    "segmentation": MASK,
    "detection": Detections(
        np.array([[20, 10, 60, 50]], np.float32), np.array([1], np.uint16), np.array([0.75], np.float32)
    ),
    "classification": Classification((1, 0), (0.75, 0.25)),
}
NAMES = ("road", "<b>[tree](x)</b>")


def write(folder: Path, sink: str, task: str = "segmentation", frames: int = 3, **changes: Any) -> None:
    """Writes frames and their latency as a run does."""
    card = replace(CARD, task=task, labels=Labels(NAMES, ((9, 8, 7), (0, 255, 0))), height=HEIGHT, width=WIDTH)
    with LogWriter(folder) as log:
        (opened,) = open_sinks(EdgeConfig(sinks=(sink,)), folder, card)
        with closing(opened):
            for index in range(frames):
                source_ns = START_NS + index * 10**8
                frame = FrameResult(
                    "/cam/../<i>left</i>",
                    index,
                    index,
                    source_ns - 5,
                    source_ns,
                    np.full((HEIGHT, WIDTH, 3), 60 * index % 256, np.uint8),
                    RESULTS[task],
                    GEOMETRY,
                )
                opened.write(replace(frame, **changes))
                log.close(answered(index, source_ns))


def answered(sequence: int, source_ns: int) -> LatencyRow:
    """Returns a row whose stages take 1 ms each at the vehicle and 0.1 ms each at the worker."""
    edge = {stage: START_NS + 10**6 * index for index, stage in enumerate(EDGE_STAGES)}
    cloud = {stage: START_NS + 10**5 * index for index, stage in enumerate(CLOUD_STAGES)}
    offset = clock.Offset(1, 250_000)
    return LatencyRow(
        "car", "/cam", "s1", sequence, Outcome.ANSWERED, source_ns=source_ns, edge_times=edge, cloud_times=cloud,
        clock=offset,
    )  # fmt: skip


def messages(path: Path) -> dict[str, list[tuple[str, int, bytes]]]:
    """Reads an MCAP file by its own library: schema, time and data by topic."""
    found: dict[str, list[tuple[str, int, bytes]]] = {}
    with path.open("rb") as file:
        for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
            assert schema is not None
            found.setdefault(channel.topic, []).append((schema.name, message.log_time, message.data))
    return found


def test_rerun_reads_masks_names_and_latency(tmp_path: Path) -> None:
    """The file has every frame at the time of its recording."""
    write(tmp_path / "run", "rerun")
    found = read_rrd(tmp_path / "run" / "run.rrd")
    (camera,) = {path.split("/")[1] for path in found if path.endswith("/mask")}
    assert "<" not in camera
    masks = found[f"/{camera}/result/mask"]
    assert [bytes(row["SegmentationImage:buffer"][0]) for row in masks] == [MASK.tobytes()] * 3
    images = [bytes(row["EncodedImage:blob"][0]) for row in found[f"/{camera}/result"]]
    assert [decode_to_rgb(image, ImageLimits())[0, 0, 0] for image in images] == [0, 60, 120]
    times = [np.datetime64(row["time"], "ns").astype(np.int64) for row in masks]
    assert times == [START_NS + index * 10**8 for index in range(3)]
    (context,) = found["/"]
    classes = [each["class_description"]["info"] for each in context["AnnotationContext:context"][0]]
    assert [each["label"] for each in classes] == [*NAMES, "not seen"]
    assert classes[1]["color"] == 0x00FF00FF
    latency = [row["Scalars:scalars"] for row in found["/latency"] if "Scalars:scalars" in row]
    assert [row[-1] for row in latency] == pytest.approx([9.0] * 3)
    assert all(row == sorted(row) for row in latency)
    assert [row["Scalars:scalars"] for row in found["/clock_error"] if "Scalars:scalars" in row] == [[0.25]] * 3


def test_rerun_reads_boxes(tmp_path: Path) -> None:
    """They are in pixels of the image that is shown."""
    write(tmp_path / "run", "rerun", "detection", frames=1)
    found = read_rrd(tmp_path / "run" / "run.rrd")
    ((row,),) = [rows for path, rows in found.items() if path.endswith("/objects")]
    assert row["Boxes2D:labels"] == [f"{NAMES[1]} 75%"]
    assert row["Boxes2D:centers"] == [[20, 15]]
    assert row["Boxes2D:half_sizes"] == [[10, 10]]


def test_foxglove_reads_masks_names_and_latency(tmp_path: Path) -> None:
    """The schemas are Foxglove's, and the names of the classes stand in the metadata of the channel."""
    write(tmp_path / "run", "foxglove")
    found = messages(tmp_path / "run" / "run.mcap")
    (mask,) = [topic for topic in found if topic.endswith("/mask")]
    assert "<" not in mask
    image = mask.replace("/mask", "/image")
    assert [schema for schema, *_ in found[mask]] == ["foxglove.RawImage"] * 3
    assert [schema for schema, *_ in found[image]] == ["foxglove.CompressedImage"] * 3
    assert [time_ns for _, time_ns, _ in found[image]] == [START_NS + index * 10**8 for index in range(3)]
    assert all(MASK.tobytes() in data for *_, data in found[mask])
    with (tmp_path / "run" / "run.mcap").open("rb") as file:
        channels = make_reader(file).get_summary().channels.values()  # type: ignore[union-attr]
    assert [each.metadata for each in channels if each.topic == mask] == [{"0": NAMES[0], "1": NAMES[1]}]
    latency = [json.loads(data) for *_, data in found["/latency"]]
    assert [row["total"] for row in latency] == pytest.approx([9.0] * 3)
    assert [row["clock_error"] for row in latency] == [0.25] * 3
    assert json.loads(found["/frames"][-1][2])["answered"] == 3


def test_foxglove_reads_boxes(tmp_path: Path) -> None:
    """As annotations of the image, in its pixels."""
    write(tmp_path / "run", "foxglove", "detection", frames=1)
    found = messages(tmp_path / "run" / "run.mcap")
    ((schema, _, data),) = next(rows for topic, rows in found.items() if topic.endswith("/annotations"))
    assert schema == "foxglove.ImageAnnotations"
    assert f"{NAMES[1]} 75%".encode() in data


def test_the_mcap_file_is_a_source(tmp_path: Path) -> None:
    """Images and masks play like those of any other recorder."""
    write(tmp_path / "run", "foxglove")
    source = open_source(str(tmp_path / "run" / "run.mcap"))
    with closing(source):
        frames = [frame for frame in source.frames() if isinstance(frame, Frame)]
    assert len(frames) == 6
    masks = [frame for frame in frames if frame.camera.endswith("/mask")]
    assert [np.array_equal(frame.pixels, MASK) for frame in masks] == [True] * 3
    assert [frame.stamp_ns for frame in masks] == [START_NS + index * 10**8 - 5 for index in range(3)]


@pytest.mark.parametrize("sink", ["rerun", "foxglove"])
def test_a_full_disk_ends_the_sink_with_its_reason(sink: str, tmp_path: Path) -> None:
    """Both libraries only log it."""
    noise = np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    with disk_of(8_000), pytest.raises(SinkError, match=r"run\.(rrd|mcap)"):
        write(tmp_path / "run", sink, frames=300, image=noise)


@pytest.mark.parametrize("sink", ["rerun", "foxglove"])
def test_raw_tensors_are_refused(sink: str) -> None:
    """Nothing of them can be shown."""
    with pytest.raises(SinkError, match=r"use png, "):
        check_sinks([sink], replace(CARD, task="tensors"))


@pytest.mark.parametrize("sink", ["rerun", "foxglove"])
def test_the_outputs_of_a_presenter_have_a_place_of_their_own(sink: str, tmp_path: Path) -> None:
    """Both can be opened together."""
    write(tmp_path / "run", sink, frames=1, age_ns=80_000_000)
    if sink == "rerun":
        found = set(read_rrd(tmp_path / "run" / "run.rrd"))
    else:
        found = set(messages(tmp_path / "run" / "run.mcap"))
    assert [path for path in found if "/presented" in path]
    assert [path for path in found if "/result" in path and path != "/age/result"] == []


@pytest.mark.parametrize("sink", ["rerun", "foxglove"])
def test_classes_are_written_best_first(sink: str, tmp_path: Path) -> None:
    """A classification has neither a mask nor boxes."""
    write(tmp_path / "run", sink, "classification", frames=1)
    if sink == "rerun":
        found = read_rrd(tmp_path / "run" / "run.rrd")
        ((row,),) = [rows for path, rows in found.items() if path.endswith("/classes")]
        assert row["TextDocument:text"] == [f"{NAMES[1]} 75%\n{NAMES[0]} 25%"]
    else:
        assert [topic for topic in messages(tmp_path / "run" / "run.mcap") if topic.endswith("/image")]
