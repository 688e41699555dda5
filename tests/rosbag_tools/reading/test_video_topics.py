"""Topics with video play like any camera, and every message that has no right picture is a row with its reason."""

import random
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from modelling.evaluation.bag_images import TimestampMatcher, images_with_boxes
from rosbag_tools.cli import bag as bag_command
from rosbag_tools.editing import rewrite
from rosbag_tools.extraction import extract
from rosbag_tools.inspection import inspect
from rosbag_tools.messages.ros_types import own_types, read_camera
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.records import FFMPEG_PACKET, Message, Serialization, TopicChannel
from rosbag_tools.verification import verify
from rosbag_tools.writer import BagWriter
from shared.errors import MissingExtraError
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.opencv import cv2
from shared.imaging.video_decoder import MAX_PACKET_BYTES
from tests.rosbag_tools.conftest import read_frames
from tests.support.video_streams import (
    COMPRESSED_VIDEO,
    DELAY_NS,
    HEIGHT,
    LOW_DELAY,
    PERIOD_NS,
    REORDERED,
    START_NS,
    WIDTH,
    StreamPacket,
    encode,
    packet_message,
    picture,
    video_message,
    write_bag,
    write_video,
)

Frames = list[Frame | UnreadableFrame]
Numbered = list[tuple[int, str, bytes]]  # Position, format, data.


def numbered(name: str, frames: int = 30) -> Numbered:
    """Returns the messages of a stream."""
    return [(index, name, packet.data) for index, packet in enumerate(encode(*LOW_DELAY[name], frames=frames))]


def write(path: Path, messages: Numbered) -> Path:
    """Writes messages at the times of their positions."""
    write_bag(
        path,
        [
            (
                START_NS + index * PERIOD_NS + DELAY_NS,
                video_message(Serialization.CDR, data, START_NS + index * PERIOD_NS, name),
            )
            for index, name, data in messages
        ],
    )
    return path


def write_packets(path: Path, packets: Iterable[tuple[int, StreamPacket]], name: str) -> Path:
    """Writes packets of ffmpeg_image_transport, whose numbers may be wrong, at the times of their positions."""
    messages = [
        (START_NS + at * PERIOD_NS, packet_message(Serialization.CDR, packet, START_NS + at * PERIOD_NS, name))
        for at, packet in packets
    ]
    write_bag(path, messages, message_type=FFMPEG_PACKET)
    return path


def lost(frames: Frames) -> dict[int, str]:
    """Returns the reasons of lost frames by the position of their stamp."""
    return {
        (frame.stamp_ns - START_NS) // PERIOD_NS: frame.reason for frame in frames if isinstance(frame, UnreadableFrame)
    }


def assert_pictures_are_right(frames: Frames) -> None:
    """Checks that every picture is that of its stamp, as far as lossy compression allows."""
    for frame in frames:
        if isinstance(frame, Frame):
            position = (frame.stamp_ns - START_NS) // PERIOD_NS
            difference = np.abs(frame.pixels[..., ::-1].astype(int) - picture(position)).mean()
            assert difference < 9, f"frame {frame.index} is not picture {position}"


@pytest.mark.parametrize("suffix", ["", ".bag"])
@pytest.mark.parametrize("name", LOW_DELAY)
def test_compressed_video_plays_like_any_camera(tmp_path: Path, name: str, suffix: str) -> None:
    """In ROS 1 and ROS 2, each frame with its own stamp and without delay."""
    path = tmp_path / f"drive{suffix}"
    write_video(path, name, [data for _, _, data in numbered(name, 15)])
    frames = read_frames(path)
    assert [frame.index for frame in frames] == list(range(15))
    assert lost(frames) == {}
    for index, frame in enumerate(frames):
        assert isinstance(frame, Frame)
        assert frame.stamp_ns == START_NS + index * PERIOD_NS
        assert frame.source_ns == frame.stamp_ns + DELAY_NS
        assert (frame.layout, frame.camera) == (Layout.BGR8, "/cam/video")
        assert frame.pixels.flags.c_contiguous
    assert_pictures_are_right(frames)
    (topic,) = inspect(path).topics
    assert (topic.encodings, topic.resolutions, topic.unreadable) == ({name: 15}, {"160×96": 15}, 0)
    assert list(verify(path)) == []
    assert extract(path, tmp_path / "out").frames == 15


@pytest.mark.parametrize("suffix", ["", ".bag"])
@pytest.mark.parametrize("encoding", ["libx264", "h264_nvenc", "h264;yuv420p;bgr8;bgr8"])
def test_ffmpeg_packets_with_reordered_frames_get_the_right_stamps(tmp_path: Path, encoding: str, suffix: str) -> None:
    """Packets come in the order of decoding; stamps belong to pictures."""
    path = tmp_path / f"drive{suffix}"
    wire = Serialization.ROS1 if suffix else Serialization.CDR
    messages = [
        (START_NS + index * PERIOD_NS, packet_message(wire, packet, START_NS + packet.pts * PERIOD_NS, encoding))
        for index, packet in enumerate(encode(*REORDERED))
    ]
    write_bag(path, messages, message_type=FFMPEG_PACKET)
    frames = read_frames(path)
    assert [(frame.stamp_ns - START_NS) // PERIOD_NS for frame in frames] == list(range(30))
    assert all(earlier.source_ns <= later.source_ns for earlier, later in pairwise(frames))
    assert lost(frames) == {}
    assert_pictures_are_right(frames)


Change = Callable[[Numbered], Numbered]


def replaced(data: bytes) -> Change:
    """Returns a change of the fourteenth message."""
    return lambda messages: [(at, name, data if at == 13 else old) for at, name, old in messages]


GROUP = [13, 14, 15, 16, 17, 18, 19]  # The rest of a group of pictures.
CHANGES: dict[str, tuple[Change, list[int]]] = {
    "empty": (replaced(b""), GROUP),
    "a picture": (replaced(cv2.imencode(".jpg", np.zeros((96, 160, 3), np.uint8))[1].tobytes()), GROUP),
    "zeros": (replaced(bytes(1000)), GROUP),
    "noise": (replaced(np.random.default_rng(2).bytes(1000)), GROUP),
    "other format": (
        lambda messages: [(at, "theora" if at == 13 else name, data) for at, name, data in messages],
        GROUP,
    ),
    "too large": (replaced(bytes(MAX_PACKET_BYTES + 1)), GROUP),
    "truncated": (
        lambda messages: [(at, name, data[: len(data) // (2 if at == 13 else 1)]) for at, name, data in messages],
        GROUP,
    ),
    "missing": (lambda messages: [each for each in messages if each[0] != 13], GROUP[1:]),
    "without the first key frame": (lambda messages: messages[5:], [5, 6, 7, 8, 9]),
}
# FFmpeg does not check the end of an H.265 frame, and two codecs show no missing one.
UNNOTICED = {("h265", "truncated"), ("av1", "truncated"), ("vp9", "missing"), ("av1", "missing")}


@pytest.mark.parametrize(("name", "change"), sorted(set(product(LOW_DELAY, CHANGES)) - UNNOTICED))
def test_a_message_without_its_frame_costs_those_up_to_the_next_key_frame(
    tmp_path: Path, name: str, change: str
) -> None:
    """A decoder would conceal the loss: each frame is named instead."""
    how, expected = CHANGES[change]
    messages = how(numbered(name))
    frames = read_frames(write(tmp_path / "drive", messages))
    assert len(frames) == len(messages)
    assert list(lost(frames)) == expected
    assert all(lost(frames).values())
    assert_pictures_are_right(frames)
    assert len(list(verify(tmp_path / "drive"))) == len(expected)


def test_a_message_in_the_layout_of_mp4_is_named(tmp_path: Path) -> None:
    """Its units have lengths instead of start codes: it seemed to come before the first key frame."""
    packets = [len(data).to_bytes(4) + data[4:] for _, _, data in numbered("h264")]
    write_video(tmp_path / "drive", "h264", packets)
    assert "Annex B" in lost(read_frames(tmp_path / "drive"))[1]


def without_last_slice(data: bytes) -> bytes:
    """Leaves out the last unit of an H.264 packet."""
    return data[: data.rfind(b"\0\0\1")]


def with_noisy_slice(data: bytes) -> bytes:
    """Overwrites a part of the second of four slices."""
    middle = len(data) // 2
    return data[:middle] + np.random.default_rng(3).bytes(40) + data[middle + 40 :]


@pytest.mark.parametrize("change", [without_last_slice, with_noisy_slice])
def test_a_lost_slice_costs_its_frame(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Threads for slices hid it: the frame was filled from the one before."""
    options = {"tune": "zerolatency", "preset": "ultrafast", "x264-params": "slices=4"}
    packets = [packet.data for packet in encode("libx264", options, size=(WIDTH, 2 * HEIGHT))]
    write_video(tmp_path / "intact", "h264", packets)
    write_video(tmp_path / "drive", "h264", [change(data) if at == 13 else data for at, data in enumerate(packets)])
    assert lost(read_frames(tmp_path / "intact")) == {}
    assert list(lost(read_frames(tmp_path / "drive"))) == [13, 14, 15, 16, 17, 18, 19]


@pytest.mark.parametrize("at", [10, 13])
@pytest.mark.parametrize("name", LOW_DELAY)
def test_a_message_that_was_recorded_twice_changes_nothing(tmp_path: Path, name: str, at: int) -> None:
    """A decoder would draw the frame's changes twice."""
    messages = numbered(name)
    frames = read_frames(write(tmp_path / "drive", messages[: at + 1] + messages[at:]))
    assert [frame.index for frame in frames if isinstance(frame, UnreadableFrame)] == [at + 1]
    assert "repeats the message before it" in lost(frames)[at]
    assert len(frames) == 31
    assert_pictures_are_right(frames)


@pytest.mark.parametrize("name", ["h264", "h265"])
def test_a_message_that_was_sent_twice_with_other_stamps_is_found_by_its_number(tmp_path: Path, name: str) -> None:
    """A key frame may come twice: it needs no other."""
    packets = [data for _, _, data in numbered(name)]
    write_video(tmp_path / "drive", name, [*packets[:14], *packets[13:]])
    assert list(lost(read_frames(tmp_path / "drive"))) == [14]
    write_video(tmp_path / "key", name, [*packets[:11], *packets[10:]])
    assert set(lost(read_frames(tmp_path / "key"))) <= {11}


def test_a_packet_that_was_sent_twice_is_found_by_its_number(tmp_path: Path) -> None:
    """Of FFMPEGPacket; behind it, a missing packet is found as before."""
    packets = [data for _, _, data in numbered("vp9")]
    order = [at for at in range(30) if at != 23]
    sent = enumerate(StreamPacket(packets[at], at) for at in [*order[:14], *order[13:]])
    assert list(lost(read_frames(write_packets(tmp_path / "drive", sent, "vp9")))) == [14, 24, 25, 26, 27, 28, 29]


@pytest.mark.parametrize("name", ["vp9", "av1"])
def test_a_pause_of_a_stream_without_numbers_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A message may be missing, and nothing in the stream shows it."""
    read_frames(write(tmp_path / "whole", numbered(name)))
    assert "no message for" not in caplog.text
    read_frames(write(tmp_path / "gap", [each for each in numbered(name) if each[0] != 13]))
    assert "no message for 0.200 s" in caplog.text
    assert f"which {name} does not show" in caplog.text


@pytest.mark.parametrize("name", ["vp9", "av1"])
def test_a_missing_packet_of_other_codecs_is_found_by_its_number(tmp_path: Path, name: str) -> None:
    """Their streams do not show it, but packets of ffmpeg_image_transport are numbered."""
    packets = [(at, StreamPacket(data, at)) for at, _, data in numbered(name) if at != 13]
    assert list(lost(read_frames(write_packets(tmp_path / "drive", packets, name)))) == [14, 15, 16, 17, 18, 19]


@pytest.mark.parametrize("name", LOW_DELAY)
def test_a_part_is_decoded_from_the_key_frame_before_it(tmp_path: Path, name: str) -> None:
    """--start-offset gives the same pictures as the whole bag."""
    path = write(tmp_path / "drive", numbered(name))
    frames = read_frames(path, start_offset_s=1.3, duration_s=0.5)
    assert [(frame.stamp_ns - START_NS) // PERIOD_NS for frame in frames] == [13, 14, 15, 16, 17]
    assert lost(frames) == {}
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    assert_pictures_are_right(frames)


def test_a_stream_may_change_its_codec_and_its_size(tmp_path: Path) -> None:
    """At a key frame the new stream plays; without one its frames are lost by name."""
    small = [("h264", packet.data) for packet in encode(*LOW_DELAY["h264"], frames=5)]
    large = [("h264", packet.data) for packet in encode(*LOW_DELAY["h264"], frames=5, size=(96, 64))]
    other = [("h265", packet.data) for packet in encode(*LOW_DELAY["h265"], frames=5)]
    stream = [*small, *large, *other, *large[2:]]
    frames = read_frames(write(tmp_path / "drive", [(at, *each) for at, each in enumerate(stream)]))
    shapes = [frame.pixels.shape[:2] for frame in frames if isinstance(frame, Frame)]
    assert shapes == [(96, 160)] * 5 + [(64, 96)] * 5 + [(96, 160)] * 5
    assert list(lost(frames)) == [15, 16, 17]


def test_two_videos_and_a_camera_keep_their_own_state(tmp_path: Path) -> None:
    """Each topic has a decoder; frames come in the order of the recording."""
    first, second = encode(*LOW_DELAY["h264"], frames=12), encode(*LOW_DELAY["vp9"], frames=12)
    with BagWriter(tmp_path / "drive") as writer:
        types = own_types(writer.format.wire)
        for index in range(12):
            time_ns = START_NS + index * PERIOD_NS
            for topic, name, packet in (("/a", "h264", first[index]), ("/b", "vp9", second[index])):
                channel = TopicChannel(topic, COMPRESSED_VIDEO, writer.format.wire)
                writer.write_raw(channel, video_message(writer.format.wire, packet.data, time_ns, name), time_ns, types)
            writer.write_image("/c", picture(index), "rgb8", time_ns, time_ns, "c")
    frames = read_frames(tmp_path / "drive")
    assert [frame.camera for frame in frames] == ["/a", "/b", "/c"] * 12
    assert_pictures_are_right([frame for frame in frames if frame.camera != "/c"])


@pytest.mark.parametrize("name", LOW_DELAY)
def test_mutated_streams_never_crash(tmp_path: Path, name: str) -> None:
    """Every message has one result, whatever its bytes."""
    rng = random.Random(3)
    messages = numbered(name, 12)
    for number in range(10):
        changed = []
        for at, video_format, data in messages:
            mutable = bytearray(data)
            for _ in range(rng.choice((0, 1, 5, 50))):
                mutable[rng.randrange(len(mutable))] = rng.randrange(256)
            changed.append((at, video_format, bytes(mutable[: rng.choice((len(mutable), len(mutable) // 2))])))
        assert len(read_frames(write(tmp_path / str(number), changed))) == 12


@pytest.mark.parametrize("unit", [b"\0\0\1\x09", b"\0\0\1\x67\xff", b"\0\0\1\x25\x88\x00"])
def test_many_units_are_refused_before_the_decoder_takes_memory(tmp_path: Path, unit: bytes) -> None:
    """Eight megabytes of them took eight gigabytes."""
    for name in ("h264", "h265"):
        frames = read_frames(write(tmp_path / name, [(0, name, unit * 1_000_000)]))
        assert "units" in lost(frames)[0]


@pytest.mark.parametrize("pts", [0, 2**64 - 1])
def test_packet_numbers_may_be_wrong(tmp_path: Path, pts: int) -> None:
    """Some recorders write none, and strangers write anything."""
    packets = [(at, StreamPacket(data, pts)) for at, _, data in numbered("h264", 12)]
    frames = read_frames(write_packets(tmp_path / "drive", packets, "h264"))
    assert lost(frames) == {}
    assert_pictures_are_right(frames)


def test_copies_keep_video_topics(tmp_path: Path) -> None:
    """Between ROS 1 and ROS 2, and for a part, whose first frames are then lost by name."""
    write(tmp_path / "drive", numbered("h264"))
    rewrite(tmp_path / "drive", tmp_path / "ros1.bag")
    assert lost(read_frames(tmp_path / "ros1.bag")) == {}
    rewrite(tmp_path / "ros1.bag", tmp_path / "back")
    assert lost(read_frames(tmp_path / "back")) == {}
    rewrite(tmp_path / "drive", tmp_path / "part", start_s=0.5)
    assert list(lost(read_frames(tmp_path / "part"))) == [5, 6, 7, 8, 9]


def test_evaluation_gets_the_pictures_of_a_video(tmp_path: Path) -> None:
    """Images are matched with their truth by stamps, and lost frames are counted."""
    path = tmp_path / "drive"
    messages = numbered("h264")[5:]
    with BagWriter(path) as writer:
        types = own_types(writer.format.wire)
        channel = TopicChannel("/cam/video", COMPRESSED_VIDEO, writer.format.wire)
        for at, name, data in messages:
            time_ns = START_NS + at * PERIOD_NS
            writer.write_raw(channel, video_message(writer.format.wire, data, time_ns, name), time_ns, types)
            writer.write_boxes("/cam/boxes", [], stamp_ns=time_ns, received_ns=time_ns, frame_id="cam")
    matcher: TimestampMatcher[Message, Any] = TimestampMatcher()
    with Bag(path) as opened:
        pairs = list(images_with_boxes(opened, "/cam/video", "/cam/boxes", matcher))
    assert len(pairs) == 20
    assert {decode(message)[0].shape for message, _ in pairs} == {(96, 160, 3)}


def test_a_newer_definition_with_more_fields_is_read() -> None:
    """Foxglove added fields behind the format; the bag defines them."""
    data = encode(*LOW_DELAY["h264"], frames=1)[0].data
    message = video_message(Serialization.CDR, data, START_NS, "h264")
    padding = -len(message) % 4
    message += bytes(padding) + (2).to_bytes(4, "little") + b"x\0"
    definition = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\nstring message_id\n"
    definition += f"{'=' * 80}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
    channel = TopicChannel("/cam", COMPRESSED_VIDEO, Serialization.CDR, definition)
    assert read_camera(Message(channel, START_NS, message)).format == "h264"


def test_without_pyav_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bags without video need no PyAV."""
    write(tmp_path / "drive", numbered("h264", 2))
    for module in [name for name in ("av", "shared.imaging.video_decoder") if name in sys.modules]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"skylane\[edge\]"):
        read_frames(tmp_path / "drive")


def test_info_shows_codec_size_and_lost_frames(tmp_path: Path) -> None:
    """For a person as for a program."""
    write(tmp_path / "drive", numbered("h264")[5:])
    output = CliRunner().invoke(bag_command, ["info", str(tmp_path / "drive")]).output
    assert "160×96" in output
    assert "h264" in output
    (topic,) = inspect(tmp_path / "drive").topics
    assert (topic.count, topic.unreadable, topic.resolutions) == (25, 5, {"160×96": 20})


@pytest.mark.parametrize(("name", "text"), [("h264", "h264"), ("h264", "jpeg"), ("h265", ""), ("vp9", "vp9")])
def test_a_video_in_compressed_images_is_decoded(tmp_path: Path, name: str, text: str) -> None:
    """Some recorders write packets under the type of images, with any format; the first message shows it."""
    types: Any = own_types(Serialization.CDR)
    kind, messages = "sensor_msgs/msg/CompressedImage", []
    for index, _, data in numbered(name, 6):
        at_ns = START_NS + index * PERIOD_NS
        header = types.types["std_msgs/msg/Header"](
            types.types["builtin_interfaces/msg/Time"](*divmod(at_ns, 10**9)), "cam"
        )
        image = types.types[kind](header, text, np.frombuffer(data, np.uint8))
        messages.append((at_ns, bytes(types.serialize_cdr(image, kind))))
    write_bag(tmp_path / "b", messages, message_type=kind)
    frames = read_frames(tmp_path / "b")
    assert [isinstance(frame, Frame) for frame in frames] == [True] * 6
    assert_pictures_are_right(frames)
    assert list(verify(tmp_path / "b")) == []
    assert [isinstance(frame, Frame) for frame in read_frames(tmp_path / "b", start_offset_s=3 * PERIOD_NS / 1e9)] == [
        True
    ] * 3
