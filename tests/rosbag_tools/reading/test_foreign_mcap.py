"""MCAP files whose messages are not serialized by ROS: protocol buffers of Foxglove play, everything else is named."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rosbag_tools.cli import bag as bag_command
from rosbag_tools.editing import rewrite
from rosbag_tools.inspection import inspect
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.data_file import DataFile
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.verification import verify
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.opencv import cv2
from tests.rosbag_tools.conftest import read_frames
from tests.support.mcap_files import Channel, camera_message, write_mcap
from tests.support.video_streams import LOW_DELAY, encode

STAMP_NS = 1_700_000_000_123_456_789
IMAGE = Channel("/cam/image", "foxglove.CompressedImage")
RAW = Channel("/cam/raw", "foxglove.RawImage")
VIDEO = Channel("/cam/video", "foxglove.CompressedVideo")
JSON = Channel("/cam/json", "foxglove.CompressedImage", "json", "jsonschema")


def jpeg(level: int) -> bytes:
    """Returns a grey JPEG."""
    return cv2.imencode(".jpg", np.full((48, 64, 3), level, np.uint8))[1].tobytes()


def images(count: int = 5) -> list[tuple[int, bytes]]:
    """Returns messages of the first channel."""
    return [
        (0, camera_message(IMAGE.schema, STAMP_NS + index, jpeg(40 * index), format="jpeg")) for index in range(count)
    ]


@pytest.mark.parametrize("profile", ["", "nuscenes", "ros2"])
@pytest.mark.parametrize("compression", [None, "", "lz4", "zstd"])
def test_compressed_images_of_foxglove_play(tmp_path: Path, profile: str, compression: str | None) -> None:
    """nuscenes2mcap and the SDK of Foxglove write such files, with any profile and compression."""
    write_mcap(tmp_path / "drive.mcap", [IMAGE], images(), profile=profile, compression=compression)
    frames = read_frames(tmp_path / "drive.mcap")
    assert [frame.stamp_ns for frame in frames] == [STAMP_NS + index for index in range(5)]
    assert all(isinstance(frame, Frame) and frame.pixels.shape == (48, 64, 3) for frame in frames)
    assert list(verify(tmp_path / "drive.mcap")) == []
    (topic,) = inspect(tmp_path / "drive.mcap").topics
    assert (topic.count, topic.encodings, topic.resolutions) == (5, {"jpeg": 5}, {"64×48": 5})
    assert topic.serialization == "protobuf"


@pytest.mark.parametrize(
    ("encoding", "pixels", "layout"),
    [
        ("rgb8", np.arange(36, dtype=np.uint8).reshape(3, 4, 3), Layout.RGB8),
        ("bgr8", np.arange(36, dtype=np.uint8).reshape(3, 4, 3), Layout.BGR8),
        ("8UC3", np.arange(36, dtype=np.uint8).reshape(3, 4, 3), Layout.BGR8),
        ("mono8", np.arange(12, dtype=np.uint8).reshape(3, 4), Layout.MONO8),
        ("mono16", np.arange(300, 312, dtype=np.uint16).reshape(3, 4), Layout.MONO16),
        ("bayer_rggb8", np.arange(16, dtype=np.uint8).reshape(4, 4), Layout.BAYER_RGGB8),
    ],
)
def test_raw_images_of_foxglove_play(tmp_path: Path, encoding: str, pixels: Any, layout: Layout) -> None:
    """The encodings of Foxglove are those of ROS, in little-endian order."""
    write_mcap(tmp_path / "drive.mcap", [RAW], [(0, camera_message(RAW.schema, STAMP_NS, pixels, encoding=encoding))])
    (frame,) = read_frames(tmp_path / "drive.mcap")
    assert isinstance(frame, Frame)
    assert frame.layout is layout
    np.testing.assert_array_equal(frame.pixels, pixels)


def test_an_unknown_encoding_is_a_row_with_its_name(tmp_path: Path) -> None:
    """Depth as floating-point numbers is no picture of a camera."""
    pixels = np.ones((3, 4), np.float32)
    write_mcap(tmp_path / "drive.mcap", [RAW], [(0, camera_message(RAW.schema, STAMP_NS, pixels, encoding="32XC9"))])
    (row,) = read_frames(tmp_path / "drive.mcap", topics=["/cam/raw"])
    assert isinstance(row, UnreadableFrame)
    assert "32XC9" in row.reason


def test_compressed_video_in_protocol_buffers_plays(tmp_path: Path) -> None:
    """Fields that Foxglove added later are ignored."""
    packets = encode(*LOW_DELAY["h264"], frames=12)
    messages = [
        (0, camera_message(VIDEO.schema, STAMP_NS + index, packet.data, format="h264", message_id="x"))
        for index, packet in enumerate(packets)
    ]
    write_mcap(tmp_path / "drive.mcap", [VIDEO], messages)
    frames = read_frames(tmp_path / "drive.mcap")
    assert [frame.stamp_ns - STAMP_NS for frame in frames] == list(range(12))
    assert all(isinstance(frame, Frame) for frame in frames)


@pytest.mark.parametrize("profile", ["", "ros2"])
@pytest.mark.parametrize("encoding", ["json", "flatbuffer", "cbor", ""])
def test_other_serializations_are_counted_and_called_unsupported(tmp_path: Path, profile: str, encoding: str) -> None:
    """Such messages were dropped without a word: info showed nothing, and verify called the file intact."""
    path = tmp_path / "drive.mcap"
    channel = JSON._replace(encoding=encoding, schema_encoding="" if encoding == "cbor" else "jsonschema")
    write_mcap(path, [IMAGE, channel], [*images(), (1, b'{"a": 1}'), (1, b"{}")], profile=profile)
    topics = {topic.name: topic for topic in inspect(path).topics}
    assert (topics["/cam/json"].count, topics["/cam/image"].count) == (2, 5)
    assert encoding in topics["/cam/json"].fault
    assert topics["/cam/image"].fault == ""
    (fault,) = verify(path)
    assert (fault.place, fault.topic) == ("not checked", "/cam/json")
    assert "2 messages" in fault.reason
    runner = CliRunner()
    assert runner.invoke(bag_command, ["verify", str(path)]).exit_code == 1
    shown = json.loads(runner.invoke(bag_command, ["info", "--json", str(path)]).stdout)
    assert {topic["name"]: topic["count"] for topic in shown["topics"]} == {"/cam/image": 5, "/cam/json": 2}
    with pytest.raises(SkylaneError, match="not supported"):
        BagSource(path, topics=["/cam/json"])
    assert len(read_frames(path)) == 5  # The camera that can be read plays.


def test_play_names_the_cameras_that_it_cannot_read(tmp_path: Path) -> None:
    """The others play; a channel of other data is no camera."""
    channels = [IMAGE, JSON, Channel("/left/image", "", "json", ""), Channel("/plan", "Plan", "json", "jsonschema")]
    write_mcap(tmp_path / "drive.mcap", channels, [*images(), *((index, b"{}") for index in (1, 2, 3))])
    source = BagSource(tmp_path / "drive.mcap")
    source.close()
    assert source.notes == [
        "/cam/json is not read: it has 1 of foxglove.CompressedImage: json messages are not supported",
        "/left/image is not read: it has 1 of an unnamed type: json messages are not supported",
    ]


def test_a_file_with_unsupported_channels_only_names_them(tmp_path: Path) -> None:
    """The error of play, extract and batch says what is there."""
    write_mcap(tmp_path / "drive.mcap", [JSON], [(0, b"{}")] * 3)
    with pytest.raises(
        SkylaneError, match=r"/cam/json \(3 of foxglove.CompressedImage: json messages are not supported"
    ):
        BagSource(tmp_path / "drive.mcap")


def test_a_copy_names_what_it_leaves_out(tmp_path: Path) -> None:
    """A bag of ROS cannot hold other serializations."""
    write_mcap(tmp_path / "drive.mcap", [IMAGE, JSON], [*images(2), (1, b"{}")])
    written = rewrite(tmp_path / "drive.mcap", tmp_path / "copy")
    assert written.messages == 0
    assert "protobuf" in written.left_out["/cam/image"]
    assert "json" in written.left_out["/cam/json"]


def test_a_truncated_file_gives_the_messages_before_its_end(tmp_path: Path) -> None:
    """A recorder that was killed writes no end."""
    path = tmp_path / "drive.mcap"
    write_mcap(path, [IMAGE], images(), is_whole=False)
    path.write_bytes(path.read_bytes()[:-100])
    source = BagSource(path)
    frames: list[Frame | UnreadableFrame] = []
    with pytest.raises(Exception, match="damaged"):
        frames.extend(source.frames())
    source.close()
    assert len(list(verify(path))) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x12\xff\xff\xff\xff\x7f", "ends within a field"),  # A length of 34 GB.
        (b"\x10\x05", "field data has the wrong type"),  # A number instead of bytes.
        (b"\x13" * 50, "wire type 3"),  # Nested groups.
        (b"\x0a\x0b\x10" + b"\xff" * 9 + b"\x01", "timestamp is"),  # Negative nanoseconds.
        (b"\x0a\x06\x08" + b"\xff" * 4 + b"\x7f", "timestamp is"),
        (b"\x28\x01" * 20_000, "more than 16384 fields"),
        (b"", "is empty"),
    ],
)
def test_hostile_protocol_buffers_are_rows(tmp_path: Path, data: bytes, reason: str) -> None:
    """Each message costs its own frame, and no memory."""
    write_mcap(tmp_path / "drive.mcap", [IMAGE], [(0, data), *images(1)])
    row, frame = read_frames(tmp_path / "drive.mcap")
    assert isinstance(row, UnreadableFrame)
    assert reason in row.reason
    assert isinstance(frame, Frame)
    assert len(list(verify(tmp_path / "drive.mcap"))) >= 1


def test_defaults_that_protocol_buffers_leave_out_are_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A timestamp of zero is not written, and replaced by the bag's time with a warning."""
    message = camera_message(IMAGE.schema, 0, jpeg(9), format="")
    write_mcap(tmp_path / "drive.mcap", [IMAGE], [(0, message)])
    with caplog.at_level(logging.WARNING):
        (frame,) = read_frames(tmp_path / "drive.mcap")
    assert frame.stamp_ns == frame.source_ns
    assert "stamps of zero" in caplog.text


def test_names_with_terminal_escapes_are_printed_harmlessly(tmp_path: Path) -> None:
    """Names come from strangers."""
    hostile = Channel("/cam\x1b[2J[red]", "evil\x1b]0;x\x07", "js\x1bon", "jsonschema")
    write_mcap(tmp_path / "drive.mcap", [hostile, IMAGE], [(0, b"{}"), (1, b"")])
    for command in ("info", "verify"):
        assert "\x1b[2J" not in CliRunner().invoke(bag_command, [command, str(tmp_path / "drive.mcap")]).output


def test_the_index_of_a_ros_2_file_is_still_used(tmp_path: Path, write_drive: Any) -> None:
    """Only files with foreign channels are read front to back."""
    drive = write_drive(tmp_path / "drive", "mcap", "none")
    with Bag(drive.path) as opened:
        assert opened.index_damage == ""
        file = DataFile(opened.files[0])
    assert file.end_ns > file.start_ns
    file.close()
