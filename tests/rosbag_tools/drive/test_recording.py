from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.drive.recording import DrivePlan, record
from rosbag_tools.drive.scene import Drive
from rosbag_tools.drive.sensor import Sensor
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from shared.imaging.frames import Frame, Layout
from tests.rosbag_tools.conftest import read_frames

SMALL = DrivePlan(seed=3, frames=3, width=48, height=32)


def frames(path: Path, *topics: str) -> list[Frame]:
    """Returns the readable frames of a bag."""
    return [frame for frame in read_frames(path, topics=topics) if isinstance(frame, Frame)]


def test_every_image_has_boxes_labels_and_camera_info(tmp_path: Path) -> None:
    """Labels have the timestamp and the scene of their image; labels of another frame would be useless."""
    record(tmp_path / "drive", SMALL)
    with Bag(tmp_path / "drive") as bag:
        assert {topic.name: (topic.channel.type, topic.count) for topic in bag.topics} == {
            "/sensors/camera/left/boxes": ("vision_msgs/msg/Detection2DArray", 3),
            "/sensors/camera/left/camera_info": ("sensor_msgs/msg/CameraInfo", 3),
            "/sensors/camera/left/image_raw": ("sensor_msgs/msg/Image", 3),
            "/sensors/camera/left/label_info": ("vision_msgs/msg/LabelInfo", 3),
            "/sensors/camera/left/labels": ("sensor_msgs/msg/Image", 3),
        }
    images, labels = frames(tmp_path / "drive"), frames(tmp_path / "drive", "/sensors/camera/left/labels")
    drive, sensor = Drive(3, width=48, height=32), Sensor(3, Layout.BAYER_RGGB8)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        scene = drive.render(index / 10)
        assert image.layout is Layout.BAYER_RGGB8
        assert image.stamp_ns == label.stamp_ns
        np.testing.assert_array_equal(image.pixels, sensor.capture(scene.rgb, index))
        np.testing.assert_array_equal(label.pixels, scene.class_ids)


def test_timestamps_are_regular_and_recording_times_are_not(tmp_path: Path) -> None:
    """A sensor triggers at a fixed rate, but a recorder stores each message after a varying delay."""
    record(tmp_path / "drive", SMALL)
    found = frames(tmp_path / "drive")
    assert {b.stamp_ns - a.stamp_ns for a, b in pairwise(found)} == {100_000_000}
    delays = [frame.source_ns - frame.stamp_ns for frame in found]
    assert len(set(delays)) == 3
    assert all(0 < delay < 20_000_000 for delay in delays)


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_the_same_seed_gives_the_same_bag(tmp_path: Path, bag_format: str) -> None:
    """Results are compared on drives that each machine renders itself."""
    name = "drive.bag" if bag_format == "ros1" else "drive"
    for folder, plan in (("a", SMALL), ("b", SMALL), ("c", DrivePlan(seed=4, frames=3, width=48, height=32))):
        record(tmp_path / folder / name, plan, bag_format=bag_format)
    content = {}
    for folder in "abc":
        with Bag(tmp_path / folder / name) as bag:
            content[folder] = [item.data for item in bag.messages() if isinstance(item, Message)]
            content[folder + "file"] = [bag.files[0].read_bytes()]
    assert content["a"] == content["b"] != content["c"]
    assert content["afile"] == content["bfile"]


@pytest.mark.parametrize("layout", [Layout.BAYER_BGGR8, Layout.BAYER_GBRG16, Layout.BAYER_GRBG8])
def test_pixels_have_the_bayer_order_and_bit_depth_of_the_layout(tmp_path: Path, layout: Layout) -> None:
    """A wrong Bayer order reduces the mean IoU by 10 points."""
    record(tmp_path / "drive", DrivePlan(seed=1, frames=1, width=48, height=32, layout=layout))
    (frame,) = frames(tmp_path / "drive")
    assert frame.layout is layout
    scene = Drive(1, width=48, height=32).render(0)
    np.testing.assert_array_equal(frame.pixels, Sensor(1, layout).capture(scene.rgb, 0))
