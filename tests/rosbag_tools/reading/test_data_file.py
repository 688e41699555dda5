"""Indexes that state what is not true of their messages, and clocks that were set while recording."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mcap.reader import NonSeekingReader
from mcap.writer import IndexType, Writer

from rosbag_tools.cli import bag
from rosbag_tools.inspection import inspect
from rosbag_tools.reading.bag import DamagedBagError
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.verification import verify
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError

TOPIC = "/cam/image_raw"
START_NS = 1_700_000_000 * 10**9
YEARS_54_S = 1_700_000_000


def write(path: Path, times_s: Sequence[float], bag_format: str = "mcap") -> Path:
    """Writes a bag with a frame at each time."""
    with BagWriter(path, bag_format) as writer:
        for time_s in times_s:
            at_ns = round(time_s * 1e9)
            # Larger than a chunk of the writer, so that every frame has its own.
            pixels = np.random.default_rng(len(times_s)).integers(0, 255, (1024, 1100), np.uint8)
            writer.write_image(TOPIC, pixels, "mono8", START_NS, at_ns, "cam")
    return path


def data_file(folder: Path) -> Path:
    """Returns the only data file, alone: metadata.yaml would also contradict."""
    (folder / "metadata.yaml").unlink()
    return next(folder.iterdir())


def records(data: bytes, start: int) -> list[tuple[int, int, int]]:
    """Returns operation code, start and end of the records of an MCAP file."""
    found = []
    while start + 9 <= len(data) - 8:
        end = start + 9 + int(struct.unpack_from("<Q", data, start + 1)[0])
        found.append((data[start], start, end))
        start = end
    return found


@pytest.mark.parametrize("stated", [3, 9])
def test_wrong_statistics_of_an_mcap_file_are_a_fault(tmp_path: Path, stated: int) -> None:
    """`bag info` of other tools shows these numbers without reading a message."""
    file = data_file(write(tmp_path / "b", [1, 2, 3, 4]))
    data = bytearray(file.read_bytes())
    _, start, end = next(each for each in records(bytes(data), 8) if each[0] == 0x0B)
    struct.pack_into("<Q", data, start + 9, stated)
    struct.pack_into("<Q", data, end - 8, stated)
    struct.pack_into("<Q", data, start + 9 + 34, 2 * 10**9)  # The time of the last message.
    struct.pack_into("<I", data, len(data) - 12, 0)  # No checksum of the summary.
    file.write_bytes(data)
    assert [fault.reason for fault in verify(file)] == [
        f"it counts {stated} messages on {TOPIC}, and the file has 4",
        "it states times from 1000000000 to 2000000000 ns, and the file has from 1000000000 to 4000000000 ns",
    ]


def test_a_wrong_total_of_an_mcap_file_is_a_fault(tmp_path: Path) -> None:
    """Its numbers by channel can be right."""
    file = data_file(write(tmp_path / "b", [1, 2, 3, 4]))
    data = bytearray(file.read_bytes())
    _, start, _ = next(each for each in records(bytes(data), 8) if each[0] == 0x0B)
    struct.pack_into("<Q", data, start + 9, 9)
    struct.pack_into("<I", data, len(data) - 12, 0)  # No checksum of the summary.
    file.write_bytes(data)
    assert [fault.reason for fault in verify(file)] == ["it counts 9 messages in all, and the file has 4"]


def test_messages_that_an_mcap_index_leaves_out_are_read(tmp_path: Path) -> None:
    """A repaired or edited file can have a chunk that its summary does not name."""
    file = data_file(write(tmp_path / "b", [1, 2, 3, 4]))
    data = file.read_bytes()
    _, start, _ = next(each for each in records(data, 8) if each[0] == 0x08)
    # The record becomes one of a private type, which readers skip.
    file.write_bytes(data[:start] + b"\x80" + data[start + 1 :])
    source = BagSource(file)
    frames = source.frames()
    assert [next(frames).camera for _ in range(4)] == [TOPIC] * 4
    with pytest.raises(DamagedBagError, match="leads to 3 of 4 messages"):
        next(frames)
    source.close()


def test_wrong_times_of_a_ros1_index_are_a_fault(tmp_path: Path) -> None:
    """`rosbag info` shows the times of the index, and --start-offset counts from them."""
    path = write(tmp_path / "b.bag", [1, 2, 3, 4], "ros1")
    data = path.read_bytes()
    at = data.rindex(b"end_time=") + len(b"end_time=")
    path.write_bytes(data[:at] + struct.pack("<II", 9, 0) + data[at + 8 :])
    (fault,) = verify(path)
    assert "it states times from 1000000000 to 9000000000 ns" in fault.reason


@pytest.mark.parametrize("bag_format", ["ros1", "sqlite3", "mcap"])
def test_a_clock_that_was_set_while_recording_is_named(tmp_path: Path, bag_format: str) -> None:
    """A computer without a battery starts in 1970; NTP then sets its clock."""
    times_s = [5.0, 5.1, YEARS_54_S + 0.0, YEARS_54_S + 0.1]
    path = write(tmp_path / ("b.bag" if bag_format == "ros1" else "b"), times_s, bag_format)
    (note,) = inspect(path).notes
    assert note == (
        f"a message of {TOPIC} was recorded 53.9 years after the latest one so far: the recorder's clock was probably set"
    )
    (fault,) = verify(path)
    assert (fault.topic, fault.sequence) == (TOPIC, 2)
    assert "recorded 53.9 years after" in fault.reason


@pytest.mark.parametrize("back_s", [2.0, 3600.0, YEARS_54_S - 10.0])
def test_a_clock_that_was_set_back_is_named_once(tmp_path: Path, back_s: float) -> None:
    """The frames after the jump are in the file after those before it."""
    times_s = [YEARS_54_S, YEARS_54_S + 1, YEARS_54_S + 1 - back_s, YEARS_54_S + 2 - back_s]
    (fault,) = verify(write(tmp_path / "b", times_s, "sqlite3"))
    assert fault.sequence == 2
    assert "before the latest one so far" in fault.reason


@pytest.mark.parametrize("pause_s", [0.1, 60.0, 1700.0])
def test_pauses_of_a_recording_are_not_faults(tmp_path: Path, pause_s: float) -> None:
    """Somebody pauses a recording for minutes."""
    path = write(tmp_path / "b", [YEARS_54_S, YEARS_54_S + pause_s, YEARS_54_S + pause_s - 0.5])
    assert list(verify(path)) == []
    assert inspect(path).notes == ()


def test_an_extraction_of_which_a_camera_has_no_frame_fails(tmp_path: Path) -> None:
    """A script must notice that there is nothing; frames of other cameras are kept."""
    path = tmp_path / "b"
    with BagWriter(path) as writer:
        for topic, encoding in (("/good", "mono8"), ("/odd", "odd"), ("/odd", "odder")):
            writer.write_image(topic, np.zeros((2, 4), np.uint8), encoding, 1, 1, "cam")
    result = CliRunner().invoke(bag, ["extract", str(path), str(tmp_path / "out")])
    assert isinstance(result.exception, SkylaneError)
    assert "no frame was written of /odd: encoding 'odd' is not an image encoding" in str(result.exception)
    assert "1 frames, 2 left out" in result.output
    assert len(list((tmp_path / "out" / "good").iterdir())) == 1
    result = CliRunner().invoke(bag, ["extract", str(path), str(tmp_path / "out"), "--topic", "/good"])
    assert result.exit_code == 0


@pytest.mark.parametrize("bag_format", ["ros1", "sqlite3", "mcap"])
def test_an_empty_bag_is_intact_and_has_nothing_to_extract(tmp_path: Path, bag_format: str) -> None:
    """A recorder that was stopped at once leaves a bag without topics."""
    path = tmp_path / ("b.bag" if bag_format == "ros1" else "b")
    with BagWriter(path, bag_format):
        pass
    assert list(verify(path)) == []
    report = inspect(path)
    assert (report.messages, report.duration_s, report.topics) == (0, 0, ())
    result = CliRunner().invoke(bag, ["extract", str(path), str(tmp_path / "out")])
    assert isinstance(result.exception, SkylaneError)


@pytest.mark.parametrize("checksum", ["right", "wrong", "none"])
def test_the_checksum_of_an_mcap_summary_is_compared(tmp_path: Path, checksum: str) -> None:
    """Players find messages by the summary; 0 means that the writer computed no checksum."""
    file = data_file(write(tmp_path / "b", [1, 2]))
    data = bytearray(file.read_bytes())
    start = struct.unpack_from("<Q", data, len(data) - 28)[0]
    right = zlib.crc32(data[start:-12])
    struct.pack_into("<I", data, len(data) - 12, {"right": right, "wrong": right ^ 1, "none": 0}[checksum])
    file.write_bytes(data)
    reasons = [fault.reason for fault in verify(file)]
    assert reasons == ["the checksum of the summary does not match its content"] * (checksum == "wrong")


def test_a_clock_that_was_set_back_is_named_in_a_recording_without_an_index(tmp_path: Path) -> None:
    """A recording that was killed is read in the order of its file: later frames seem to be due at once."""
    times_s = [YEARS_54_S, YEARS_54_S + 1, YEARS_54_S - 3600, YEARS_54_S - 3599]
    file = data_file(write(tmp_path / "b", times_s))
    file.write_bytes(file.read_bytes()[:-40])
    assert ["before the latest" in note for note in inspect(file).notes] == [False, True]
    source = BagSource(file)
    frames = list(source.frames())
    source.close()
    assert [frame.source_ns for frame in frames] == sorted(frame.source_ns for frame in frames)
    notes = source.provenance["notes"]
    assert isinstance(notes, list)
    assert any(note.startswith("frame 2 was recorded 1.0 hours before") for note in notes)
    assert ["index" in fault.place for fault in verify(file)] == [False, True]


def test_names_from_a_bag_are_printed_without_control_characters(tmp_path: Path) -> None:
    """A topic named by a stranger must not clear or recolour the terminal."""
    path = tmp_path / "b"
    with BagWriter(path) as writer:
        for at_ns in (1, YEARS_54_S * 10**9):
            writer.write_image("/cam\x1b[2J", np.zeros((2, 4), np.uint8), "odd", 1, at_ns, "cam")
    for arguments in (["verify", str(path)], ["info", str(path)], ["extract", str(path), str(tmp_path / "out")]):
        assert "\x1b[2J" not in CliRunner().invoke(bag, arguments).output


_LEFT_OUT: dict[str, dict[str, Any]] = {
    "channels": {"repeat_channels": False},
    "schemas": {"repeat_schemas": False},
    "channels and statistics": {"repeat_channels": False, "use_statistics": False},
    "chunks": {"use_chunking": False},
    "message index": {"index_types": IndexType.CHUNK},
    "chunk index": {"index_types": IndexType.MESSAGE},
    "message index and statistics": {"index_types": IndexType.CHUNK, "use_statistics": False},
}


@pytest.mark.parametrize("options", _LEFT_OUT.values(), ids=_LEFT_OUT)
def test_a_summary_that_leaves_out_what_it_may_is_no_fault(tmp_path: Path, options: dict[str, Any]) -> None:
    """Writers shorten the summary; a reader that starts at the front misses nothing."""
    source, target = data_file(write(tmp_path / "b", [1, 2, 3, 4])), tmp_path / "short.mcap"
    with source.open("rb") as old, target.open("wb") as new:
        writer: Any = Writer(new, chunk_size=1000, **options)
        writer.start("ros2", "test")
        channel = 0
        for schema, topic, message in NonSeekingReader(old).iter_messages():
            assert schema is not None
            if not channel:
                number = writer.register_schema(schema.name, schema.encoding, schema.data)
                channel = writer.register_channel(topic.topic, topic.message_encoding, number)
            writer.add_message(channel, message.log_time, message.data, message.publish_time)
        writer.finish()
    assert list(verify(target)) == []
    assert inspect(target).messages == 4
    source_of_frames = BagSource(target)
    assert len([*source_of_frames.frames()]) == source_of_frames.frame_count == 4
    source_of_frames.close()


@pytest.mark.parametrize("use_chunking", [True, False])
def test_the_checksum_of_the_data_section_is_compared(tmp_path: Path, *, use_chunking: bool) -> None:
    """Without chunks, it is the only one of the messages."""
    path = tmp_path / "b.mcap"
    with path.open("wb") as file:
        writer: Any = Writer(file, use_chunking=use_chunking, enable_data_crcs=True)
        writer.start("ros2", "test")
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        channel = writer.register_channel("/s", "cdr", schema)
        writer.add_message(channel, 5, b"\0\1\0\0\2\0\0\0a\0", 5)
        writer.finish()
    assert list(verify(path)) == []
    data = bytearray(path.read_bytes())
    _, start, _ = next(each for each in records(bytes(data), 8) if each[0] == 0x0F)
    data[start + 9] ^= 1
    path.write_bytes(data)
    assert [fault.reason for fault in verify(path)] == ["the checksum of the data section does not match its content"]


def test_pictures_that_cannot_be_converted_cost_no_other_camera(tmp_path: Path) -> None:
    """A Bayer camera of odd size is left out with the reason; two cameras of one name get a folder each."""
    with BagWriter(tmp_path / "b") as writer:
        for topic, height, encoding in (
            ("/odd", 3, "bayer_rggb8"),
            ("/cam/image", 4, "mono8"),
            ("/cam_image", 4, "mono8"),
        ):
            writer.write_image(topic, np.zeros((height, 4), np.uint8), encoding, 1, 1, "cam")
    result = CliRunner().invoke(bag, ["extract", str(tmp_path / "b"), str(tmp_path / "out")])
    assert "a Bayer pattern needs even sides" in str(result.exception)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["cam_image", "cam_image_2"]
    CliRunner().invoke(bag, ["extract", str(tmp_path / "b"), str(tmp_path / "one"), "--topic", "/cam_image"])
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["cam_image_2"]
