import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from backports import zstd

from rosbag_tools.messages.ros_types import own_types
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.mcap_file import MAGIC
from rosbag_tools.records import Serialization, TopicChannel
from rosbag_tools.verification import BagFault, verify, without_checksums
from rosbag_tools.writer import BagWriter
from tests.rosbag_tools.conftest import FindBag, WriteDrive

PIXELS = np.zeros((2, 4), np.uint8)


@pytest.mark.parametrize(
    "name",
    ["fiducials_aruco_images.bag", "ros_numpy_test.bag", "amber_soccer_goal", "ros2bag_tools_images"],
)
def test_real_bags_have_no_faults(real_bag: FindBag, name: str) -> None:
    """Timestamps of zero, old type names and missing definitions are common and not faults."""
    assert list(verify(real_bag(name))) == []


@pytest.mark.parametrize(
    ("encoding", "shape", "reason"),
    [
        ("32FC1", (2, 4), "is not an image encoding"),
        ("rgb8", (2, 4), "takes 12 bytes, but the step is 4"),
        ("mono16", (2, 4), "takes 8 bytes, but the step is 4"),
    ],
)
def test_undecodable_images_are_reported(tmp_path: Path, encoding: str, shape: tuple[int, int], reason: str) -> None:
    """A fault has topic, sequence number, timestamp and position in the file, so that other tools can find it."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/cam", PIXELS, "mono8", 10, 20, "cam")
        writer.write_image("/cam", np.zeros(shape, np.uint8), encoding, 11, 21, "cam")
    (finding,) = verify(tmp_path / "drive")
    assert (finding.topic, finding.sequence, finding.stamp_ns) == ("/cam", 1, 11)
    assert finding.place.startswith("byte ")
    assert reason in finding.reason


def test_decreasing_timestamps_are_reported(tmp_path: Path) -> None:
    """The clock was set back, or two drivers publish on one topic; a timestamp of zero does not count."""
    with BagWriter(tmp_path / "drive", "sqlite3") as writer:
        for index, stamp_ns in enumerate((1_000_000_000, 0, 500_000_000, 2_000_000_000)):
            writer.write_image("/cam", PIXELS, "mono8", stamp_ns, index + 1, "cam")
    assert list(verify(tmp_path / "drive")) == [
        BagFault("row 3", "/cam", 2, 500_000_000, "its stamp is 0.500000 s before that of an earlier message")
    ]


def write_raw(path: Path, message_type: str, *messages: bytes) -> None:
    """Writes a bag of serialised messages, which may be invalid."""
    channel = TopicChannel("/raw", message_type, Serialization.CDR)
    with BagWriter(path) as writer:
        for index, data in enumerate(messages):
            writer.write_raw(channel, data, index + 1, own_types(Serialization.CDR))


@pytest.mark.parametrize("message_type", ["sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo", "std_msgs/msg/String"])
def test_truncated_messages_of_any_type_are_reported(tmp_path: Path, message_type: str) -> None:
    """Each message is checked against the definition of its type."""
    write_raw(tmp_path / "drive", message_type, b"\0\1\0\0\5\0\0\0", b"")
    findings = list(verify(tmp_path / "drive"))
    assert [(finding.topic, finding.sequence) for finding in findings] == [("/raw", 0), ("/raw", 1)]


def test_an_image_with_a_huge_size_is_reported_without_allocating_it(tmp_path: Path) -> None:
    """A message of a few bytes claims four billion rows and columns."""
    header = b"\0\1\0\0" + bytes(8) + b"\1\0\0\0\0\0\0\0"
    write_raw(tmp_path / "drive", "sensor_msgs/msg/Image", header + b"\xff" * 8 + b"\6\0\0\0mono8\0" + bytes(10))
    (finding,) = verify(tmp_path / "drive")
    assert "4294967295×4294967295: more than" in finding.reason


def test_a_truncated_file_is_reported_with_the_position(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The position in bytes shows where the copy was interrupted."""
    drive = write_drive(tmp_path / "drive.bag", "ros1")
    data = drive.path.read_bytes()
    drive.path.write_bytes(data[:-100])
    findings = list(verify(drive.path))
    assert findings
    assert all(finding.place.startswith("byte ") for finding in findings)


def test_a_bag_with_only_a_damaged_index_is_reported(tmp_path: Path, write_drive: WriteDrive) -> None:
    """All messages are intact, but other readers cannot open the bag."""
    drive = write_drive(tmp_path / "drive.bag", "ros1")
    data = bytearray(drive.path.read_bytes())
    at = data.rindex(b"chunk_pos=") + len(b"chunk_pos=")
    data[at : at + 4] = b"\xff" * 4
    drive.path.write_bytes(data)
    (finding,) = verify(drive.path)
    assert finding.place == "index"
    assert "the messages themselves are intact" in finding.reason


@pytest.mark.parametrize(
    ("name", "bag_format", "compression", "has_none"),
    [
        ("drive.bag", "ros1", "none", True),
        ("drive.bag", "ros1", "bz2", False),
        ("drive", "sqlite3", "none", True),
        ("drive", "sqlite3", "zstd", True),
        ("drive.mcap", "mcap", "none", False),
        ("drive.mcap", "mcap", "zstd", False),
        ("drive", "mcap", "none", False),
        ("drive", "mcap", "zstd-message", False),
    ],
)
def test_bags_without_checksums_are_named(
    tmp_path: Path, name: str, bag_format: str, compression: str, *, has_none: bool
) -> None:
    """A user must not take an intact form for intact pixels; bz2 has a checksum of its own."""
    with BagWriter(tmp_path / name, bag_format, compression) as writer:
        writer.write_image("/cam", PIXELS, "mono8", 10, 20, "cam")
    with Bag(tmp_path / name) as bag:
        assert without_checksums(bag) == (tuple(file.name for file in bag.files) if has_none else ())


def _chunk_at(data: bytearray) -> tuple[int, int]:
    """Returns start and size of the content of the first chunk."""
    at = len(MAGIC)
    while data[at] != 6:
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    return at + 9, struct.unpack_from("<Q", data, at + 1)[0]


@pytest.mark.parametrize("compression", ["none", "zstd", "zstd-message"])
def test_checksums_of_an_mcap_are_those_of_the_specification(tmp_path: Path, compression: str) -> None:
    """One for each chunk, over its decompressed records, and one for the summary up to the checksum itself."""
    with BagWriter(tmp_path / "drive", "mcap", compression) as writer:
        for at in range(1, 30):
            writer.write_image("/cam", np.full((300, 300), at, np.uint8), "mono8", at, at, "cam")
    data = (tmp_path / "drive" / "drive.mcap").read_bytes()
    at, chunks = len(MAGIC), 0
    while data[at] != 0x0F:  # Data End
        size = struct.unpack_from("<Q", data, at + 1)[0]
        if data[at] == 6:
            chunks += 1
            name = 41 + struct.unpack_from("<I", data, at + 37)[0]  # Where the name of the compression ends.
            stored = data[at + name + 8 : at + 9 + size]
            records = zstd.decompress(stored) if compression == "zstd" else stored
            assert struct.unpack_from("<I", data, at + 33)[0] == zlib.crc32(records)
        at += 9 + size
    assert chunks > 1 or compression == "zstd-message"
    start = struct.unpack_from("<Q", data, len(data) - 28)[0]
    assert struct.unpack_from("<I", data, len(data) - 12)[0] == zlib.crc32(data[start:-12])
    assert list(verify(tmp_path / "drive")) == []


def test_a_changed_pixel_is_found_by_the_checksum(tmp_path: Path) -> None:
    """It goes unnoticed if the writer computed none."""
    path = tmp_path / "drive.mcap"
    with BagWriter(path) as writer:
        writer.write_image("/cam", PIXELS, "mono8", 10, 20, "cam")
    data = bytearray(path.read_bytes())
    at, size = _chunk_at(data)
    data[at + size - 1] ^= 1  # The last byte of the chunk is a pixel.
    path.write_bytes(data)
    assert "the checksum of a chunk does not match" in next(verify(path)).reason
    struct.pack_into("<I", data, at + 24, 0)
    struct.pack_into("<I", data, len(data) - 12, 0)
    path.write_bytes(data)
    assert list(verify(path)) == []
    with Bag(path) as bag:
        assert without_checksums(bag) == ("drive.mcap",)


def test_the_length_of_a_damaged_record_does_not_stop_the_search(tmp_path: Path) -> None:
    """The damage itself is a fault."""
    path = tmp_path / "drive.mcap"
    with BagWriter(path) as writer:
        writer.write_image("/cam", PIXELS, "mono8", 10, 20, "cam")
    data = bytearray(path.read_bytes())
    at, _ = _chunk_at(data)
    struct.pack_into("<Q", data, at - 8, 2**64 - 1)
    struct.pack_into("<I", data, at + 24, 0)
    path.write_bytes(data)
    with Bag(path) as bag:
        assert without_checksums(bag) == ("drive.mcap",)


def test_progress_is_reported_for_every_message(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The user sees that a long bag is being read."""
    seen: list[object] = []
    list(verify(write_drive(tmp_path / "drive").path, seen.append))
    assert len(seen) == 10
