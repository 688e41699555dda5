import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from rosbag_tools import writer as writer_module
from rosbag_tools.bag_format import BagFormat
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import read, read_label_info
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError, UnknownNameError
from tests.rosbag_tools.conftest import PATHS, WriteDrive


def images(path: Path) -> list[np.ndarray[Any, Any]]:
    """Returns the pixels of all readable images in a bag, which may be damaged."""
    with Bag(path) as bag:
        found = [item for item in bag.messages() if isinstance(item, Message) and item.channel.has_images]
        return [read(item).data for item in found]


def write(writer: BagWriter, count: int) -> None:
    """Writes `count` small images with the times 1 ns, 2 ns, 3 ns and so on."""
    for index in range(count):
        writer.write_image("/cam", np.ones((2, 2), np.uint8), "mono8", index + 1, index + 1, "cam")


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_another_library_reads_the_written_messages(tmp_path: Path, bag_format: BagFormat) -> None:
    """Other tools must be able to open the bag; `rosbags` uses only the message definitions in the bag itself."""
    path = tmp_path / PATHS[bag_format]
    pixels = np.arange(24, dtype=np.uint16).reshape(4, 6)
    with BagWriter(path, bag_format) as writer:
        writer.write_image("/cam/image_raw", pixels, "bayer_rggb16", 1_500_000_001, 1_600_000_000, "optical")
        writer.write_camera_info("/cam/camera_info", 4, 6, 5.0, stamp_ns=3, received_ns=1_600_000_001, frame_id="o")
        writer.write_boxes(
            "/cam/boxes", [Box("car", 2, 1, 3, 2)], stamp_ns=3, received_ns=1_600_000_002, frame_id="optical"
        )
    with AnyReader([path]) as reader:
        messages: list[Any] = [
            (connection.topic, time, reader.deserialize(data, connection.msgtype))
            for connection, time, data in reader.messages()
        ]
    (topic, time, image), (_, _, info), (_, _, boxes) = messages
    assert (topic, time, image.encoding, image.step) == ("/cam/image_raw", 1_600_000_000, "bayer_rggb16", 12)
    assert (image.header.stamp.sec, image.header.stamp.nanosec, image.header.frame_id) == (1, 500_000_001, "optical")
    np.testing.assert_array_equal(image.data.view("<u2").reshape(4, 6), pixels)
    np.testing.assert_array_equal(info.K if bag_format is BagFormat.ROS1 else info.k, [5, 0, 3, 0, 5, 2, 0, 0, 1])
    (detection,) = boxes.detections
    assert (detection.bbox.size_x, detection.bbox.size_y) == (3, 2)
    if bag_format is BagFormat.ROS1:
        assert (detection.bbox.center.x, detection.bbox.center.y) == (3.5, 2)
        assert detection.results[0].id == 8
    else:
        assert (detection.bbox.center.position.x, detection.bbox.center.position.y) == (3.5, 2)
        assert detection.results[0].hypothesis.class_id == "car"


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_writing_the_same_messages_twice_gives_identical_files(
    tmp_path: Path, write_drive: WriteDrive, bag_format: str
) -> None:
    """Results identify a bag by its SHA-256, so the file must be reproducible."""
    drives = [write_drive(tmp_path / str(turn) / PATHS[bag_format], bag_format) for turn in range(2)]
    assert drives[0].data_file.read_bytes() == drives[1].data_file.read_bytes()


def test_a_path_named_mcap_becomes_one_file(tmp_path: Path) -> None:
    """Viewers open a single .mcap file, and it is easier to send than a folder."""
    with BagWriter(tmp_path / "a.mcap") as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
    assert [each.name for each in tmp_path.iterdir()] == ["a.mcap"]
    assert len(images(tmp_path / "a.mcap")) == 1
    with pytest.raises(SkylaneError, match="--force"):
        BagWriter(tmp_path / "a.mcap")
    with BagWriter(tmp_path / "a.mcap", overwrite=True):
        pass
    assert images(tmp_path / "a.mcap") == []


@pytest.mark.parametrize(
    ("name", "bag_format", "advice"),
    [
        ("drive", "ros1", r"write to drive\.bag"),
        ("drive.bag", "mcap", "is a folder"),
        ("a.mcap", "sqlite3", "is a folder"),
    ],
)
def test_a_path_that_contradicts_the_format_is_refused(
    tmp_path: Path, name: str, bag_format: str | None, advice: str
) -> None:
    """Viewers open neither a folder whose name ends with .bag nor a ROS 1 file without that suffix."""
    with pytest.raises(SkylaneError, match=advice):
        BagWriter(tmp_path / name, bag_format)
    assert list(tmp_path.iterdir()) == []


def test_unknown_formats_and_compressions_are_refused(tmp_path: Path) -> None:
    """ROS 1 supports bz2 and ROS 2 supports zstd."""
    with pytest.raises(UnknownNameError, match="bag format"):
        BagWriter(tmp_path / "drive", "ros3")
    with pytest.raises(UnknownNameError, match="compression for mcap"):
        BagWriter(tmp_path / "drive", "mcap", "bz2")


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_an_existing_bag_is_replaced_only_with_overwrite(
    tmp_path: Path, write_drive: WriteDrive, bag_format: str
) -> None:
    """The existing bag may be the only copy of a recording."""
    drive = write_drive(tmp_path / PATHS[bag_format], bag_format)
    with pytest.raises(SkylaneError, match="--force"):
        BagWriter(drive.path, bag_format)
    assert len(images(drive.path)) == 5
    with BagWriter(drive.path, bag_format, overwrite=True) as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
    assert len(images(drive.path)) == 1


@pytest.mark.parametrize("name", ["notes.txt", "sub/metadata.yaml"])
def test_overwrite_never_removes_files_that_are_not_part_of_a_bag(tmp_path: Path, name: str) -> None:
    """`--force` must not delete a home folder that was given as OUT by mistake."""
    precious = tmp_path / "home" / name
    precious.parent.mkdir(parents=True)
    precious.write_text("mine", encoding="utf-8")
    with pytest.raises(SkylaneError, match="is not replaced"):
        BagWriter(tmp_path / "home", "mcap", overwrite=True)
    with pytest.raises(SkylaneError, match=r"is not replaced|is the name of a text"):
        BagWriter(precious, overwrite=True)
    assert precious.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_an_interrupted_recording_leaves_a_complete_bag(tmp_path: Path, bag_format: str) -> None:
    """After Ctrl-C, the bag has its index and all messages that were written before."""
    path = tmp_path / PATHS[bag_format]

    def interrupted() -> None:
        with BagWriter(path, bag_format) as writer:
            write(writer, 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with AnyReader([path]) as reader:
        assert reader.message_count == 1


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_a_bag_is_completed_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bag_format: str
) -> None:
    """The index is written while there is still room for it, so every reader can open the bag."""
    path = tmp_path / PATHS[bag_format]
    with BagWriter(path, bag_format) as writer:
        write(writer, 2)
        monkeypatch.setattr(writer_module, "SPARE_BYTES", 1 << 60)
        with pytest.raises(SkylaneError, match="the disk is full; the 2 messages"):
            write(writer, 1)
    with AnyReader([path]) as reader:
        assert reader.message_count == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits files to `size` bytes, so that a write fails as on a disk that another program fills."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_a_sudden_write_error_loses_only_the_last_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bag_format: str
) -> None:
    """There is no room for an index, but the messages that were written are still read in sequence."""
    monkeypatch.setattr(writer_module, "COMMIT_BYTES", 1)
    path = tmp_path / PATHS[bag_format]
    frames = np.random.default_rng(1).integers(0, 256, (20, 512, 1024), np.uint8)

    def fill() -> None:
        with BagWriter(path, bag_format) as writer:
            for index, pixels in enumerate(frames):
                writer.write_image("/cam", pixels, "mono8", index + 1, index + 1, "cam")

    with largest_file(5 << 20), pytest.raises(SkylaneError, match="it has no index"):
        fill()
    saved = images(path)
    assert len(saved) >= 5
    for pixels, found in zip(frames, saved, strict=False):
        np.testing.assert_array_equal(found, pixels.reshape(-1))


def test_sqlite_messages_are_committed_during_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed recorder loses all messages since the last commit."""
    monkeypatch.setattr(writer_module, "COMMIT_BYTES", 1)
    with BagWriter(tmp_path / "drive", "sqlite3") as writer:
        write(writer, 3)
        with closing(sqlite3.connect(tmp_path / "drive" / "drive.db3")) as other:
            assert other.execute("SELECT count(*) FROM messages").fetchone() == (3,)


def test_a_time_outside_of_the_range_of_the_format_is_refused(tmp_path: Path) -> None:
    """A damaged bag can contain any time, but ROS 1 stores seconds in 32 bits."""
    with BagWriter(tmp_path / "drive.bag") as writer, pytest.raises(SkylaneError, match="0 messages"):
        writer.write_image("/cam", np.ones((2, 2), np.uint8), "mono8", 1, 1 << 70, "cam")


@pytest.mark.parametrize("target", ["drive.mcap", "nothing"])
def test_a_link_to_nothing_is_in_the_way_and_can_be_replaced(tmp_path: Path, target: str) -> None:
    """It may lead in a circle; the library would raise an error of its own, or write to another place."""
    path = tmp_path / "drive.mcap"
    path.symlink_to(target)
    with pytest.raises(SkylaneError, match="exists: choose another name, or --force"):
        BagWriter(path)
    with BagWriter(path, overwrite=True) as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
    assert path.is_file()
    assert not path.is_symlink()


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_the_names_of_labels_are_read_back(tmp_path: Path, bag_format: BagFormat) -> None:
    """Other libraries read them too."""
    path = tmp_path / PATHS[bag_format]
    with BagWriter(path, bag_format) as writer:
        writer.write_label_info("/cam/label_info", ["road", "", "Gehweg ß"], stamp_ns=3, received_ns=4, frame_id="o")
    with Bag(path) as bag:
        (message,) = [each for each in bag.messages() if isinstance(each, Message)]
    assert read_label_info(message) == ("road", "", "Gehweg ß")
    with AnyReader([path]) as reader:
        ((connection, _, data),) = reader.messages()
        info: Any = reader.deserialize(data, connection.msgtype)
    assert (info.class_map[0].class_id, info.class_map[0].class_name) == (0, "road")


@pytest.mark.parametrize("names", [[], ["a"] * 256, ["\x1b[2J"], ["a" * 65]])
def test_impossible_names_of_labels_are_refused(tmp_path: Path, names: list[str]) -> None:
    """Names come from files of strangers, and are shown in tables."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_label_info("/cam/label_info", names, stamp_ns=3, received_ns=4, frame_id="o")
    with Bag(tmp_path / "drive") as bag:
        (message,) = [each for each in bag.messages() if isinstance(each, Message)]
    with pytest.raises(SkylaneError, match="/cam/label_info has "):
        read_label_info(message)
