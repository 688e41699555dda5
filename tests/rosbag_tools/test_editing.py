from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.editing import rewrite
from rosbag_tools.extraction import extract
from rosbag_tools.messages.ros_types import own_types
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message, Serialization, TopicChannel
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2
from tests.rosbag_tools.conftest import PATHS, FindBag, WriteDrive


def raw(path: Path) -> list[tuple[str, int, bytes]]:
    """Returns every message of a bag."""
    with Bag(path) as bag:
        return [(item.channel.topic, item.time_ns, item.data) for item in bag.messages() if isinstance(item, Message)]


@pytest.mark.parametrize(("source", "target"), list(product(BagFormat, BagFormat)))
def test_converting_a_bag_and_back_restores_every_message(
    tmp_path: Path, write_drive: WriteDrive, source: str, target: str
) -> None:
    """Only the sequence number of ROS 1 headers is lost, for which ROS 2 has no field."""
    drive = write_drive(tmp_path / "a" / PATHS[source], source)
    there, back = tmp_path / "b" / PATHS[target], tmp_path / "c" / PATHS[source]
    assert rewrite(drive.path, there, bag_format=target).messages == 10
    rewrite(there, back, bag_format=source)
    before, after = raw(drive.path), raw(back)
    if source == "ros1" != target:
        before = [(topic, time_ns, bytes(4) + data[4:]) for topic, time_ns, data in before]
    assert after == before


@pytest.mark.parametrize("target", list(BagFormat))
@pytest.mark.parametrize(
    "name", ["fiducials_aruco_images.bag", "ros_numpy_test.bag", "amber_soccer_goal", "ros2bag_tools_images"]
)
def test_real_bags_are_converted_to_every_format_with_all_topics(
    tmp_path: Path, real_bag: FindBag, name: str, target: str
) -> None:
    """One bag has no definitions and one has types without `/msg/`; `rosbags` reads the converted bags."""
    path = tmp_path / PATHS[target]
    rewritten = rewrite(real_bag(name), path, bag_format=target)
    assert rewritten.left_out == {}
    with Bag(real_bag(name)) as bag:
        expected = {topic.name: topic.count for topic in bag.topics}
    with AnyReader([path]) as reader:
        for connection, _, data in reader.messages():
            reader.deserialize(data, connection.msgtype)
        assert {name: topic.msgcount for name, topic in reader.topics.items()} == expected


def test_a_rewritten_part_has_the_selected_times_and_topics(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The format of the bag and the times of the messages stay unchanged."""
    drive = write_drive(tmp_path / "a" / "drive", "sqlite3")
    part: dict[str, Any] = {"topics": ("cam/image_raw",), "start_s": 0.1, "duration_s": 0.2}
    rewrite(drive.path, tmp_path / "b", **part)
    with Bag(tmp_path / "b") as bag:
        assert bag.format == "sqlite3"
    everything = [each for each in raw(drive.path) if each[0] == "/cam/image_raw"]
    assert raw(tmp_path / "b") == everything[1:3]


def test_a_start_after_the_last_message_is_refused(tmp_path: Path, write_drive: WriteDrive) -> None:
    """An empty bag would look as if the recording were lost."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(SkylaneError, match=r"is 0\.400 s long: no message is later than --start 9\.0"):
        rewrite(drive.path, tmp_path / "b", start_s=9.0)
    assert not (tmp_path / "b").exists()


def test_no_bag_is_written_for_an_unknown_topic(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The topics are checked before the output is created."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(UnknownNameError, match="did you mean"):
        rewrite(drive.path, tmp_path / "b", topics=("/cam/image_rw",))
    assert not (tmp_path / "b").exists()


def test_a_bag_is_not_written_over_itself(tmp_path: Path, write_drive: WriteDrive) -> None:
    """`--force` would delete the source before it is read."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(SkylaneError, match="is the source bag"):
        rewrite(drive.path, tmp_path / "drive", overwrite=True)
    assert len(raw(drive.path)) == 10


def test_a_topic_with_an_invalid_message_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """The other topics are still converted."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
        writer.write_raw(
            TopicChannel("/odd", "std_msgs/msg/String", Serialization.CDR),
            b"\0\1\0\0\xff",
            2,
            own_types(Serialization.CDR),
        )
    rewritten = rewrite(tmp_path / "drive", tmp_path / "drive.bag")
    assert rewritten.messages == 1
    assert "cannot be read as std_msgs/msg/String" in rewritten.left_out["/odd"]


def test_latched_topics_stay_latched(tmp_path: Path) -> None:
    """A late subscriber to a static transform must receive it in ROS 1 and in ROS 2."""
    channel = TopicChannel("/static", "std_msgs/msg/String", Serialization.CDR, is_latched=True)
    with BagWriter(tmp_path / "a") as writer:
        writer.write_raw(channel, b"\0\1\0\0\2\0\0\0x\0", 1, own_types(Serialization.CDR))
    rewrite(tmp_path / "a", tmp_path / "b.bag")
    rewrite(tmp_path / "b.bag", tmp_path / "c", bag_format="sqlite3")
    for path in ("a", "b.bag", "c"):
        with Bag(tmp_path / path) as bag:
            assert [topic.channel.is_latched for topic in bag.topics] == [True]


def test_extracted_frames_are_demosaiced_or_raw(tmp_path: Path, write_drive: WriteDrive) -> None:
    """Users view the colour images and process the raw sensor values."""
    drive = write_drive(tmp_path / "drive")
    assert extract(drive.path, tmp_path / "colour").frames == 5
    assert extract(drive.path, tmp_path / "raw", raw=True).frames == 5
    name = "cam_image_raw/000003_1600000000300000000.png"
    expected = to_colour(drive.frames[3], Layout.BAYER_RGGB8, Layout.BGR8, "bilinear")
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "colour" / name)), expected)
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "raw" / name), cv2.IMREAD_UNCHANGED), drive.frames[3])


def test_extracted_files_stay_in_their_folder(tmp_path: Path) -> None:
    """A topic name comes from an untrusted file and may contain `..`."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/../../evil", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
        writer.write_image("/../../evil", np.zeros((2, 2), np.uint8), "odd", 2, 2, "cam")
    extracted = extract(tmp_path / "drive", tmp_path / "out")
    assert extracted.frames == 1
    assert "frame 1: encoding 'odd' is not an image encoding" in extracted.unreadable[0]
    assert [path.parent.name for path in (tmp_path / "out").rglob("*.png")] == ["______evil"]
