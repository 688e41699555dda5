import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.data_file import ForeignBagError
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.opencv import cv2
from tests.rosbag_tools.conftest import DELAY_NS, PERIOD_NS, START_NS, FindBag, WriteDrive, read_frames

EVERY_KIND = [
    *(("ros1", compression) for compression in ("none", "bz2", "lz4")),
    *((kind, compression) for kind in ("sqlite3", "mcap") for compression in ("none", "zstd", "zstd-message")),
    ("sqlite3", "zstd-file"),
    ("mcap", "zstd-file"),
]


@pytest.mark.parametrize(("bag_format", "compression"), EVERY_KIND)
def test_pixels_are_unchanged_in_every_format_and_compression(
    tmp_path: Path, write_drive: WriteDrive, bag_format: str, compression: str
) -> None:
    """A mask is reproducible only if its frame is read exactly as it was recorded."""
    drive = write_drive(tmp_path / ("drive.bag" if bag_format == "ros1" else "drive"), bag_format, compression)
    frames = read_frames(drive.path)
    assert [frame.index for frame in frames] == list(range(5))
    for index, (frame, pixels) in enumerate(zip(frames, drive.frames, strict=True)):
        assert isinstance(frame, Frame)
        np.testing.assert_array_equal(frame.pixels, pixels)
        assert frame.pixels.flags.c_contiguous
        assert (frame.layout, frame.camera) == (Layout.BAYER_RGGB8, "/cam/image_raw")
        assert frame.stamp_ns == START_NS + index * PERIOD_NS
        assert frame.source_ns == frame.stamp_ns + DELAY_NS
        assert frame.read_ns > 0


@pytest.mark.parametrize("bag_format", ["sqlite3", "mcap"])
@pytest.mark.parametrize("compression", ["zstd-message", "zstd-file"])
def test_a_compressed_bag_without_metadata_is_read(
    tmp_path: Path, write_drive: WriteDrive, bag_format: str, compression: str
) -> None:
    """Users copy data files without metadata.yaml, so the compression must be found in the data."""
    drive = write_drive(tmp_path / "drive", bag_format, compression)
    (drive.path / "metadata.yaml").unlink()
    assert len(read_frames(drive.path)) == 5
    assert len(read_frames(drive.data_file)) == 5


def test_the_files_of_a_split_bag_are_read_in_order_of_time(tmp_path: Path, write_drive: WriteDrive) -> None:
    """Recorders split long drives, and in alphabetical order the tenth file precedes the second."""
    drive = write_drive(tmp_path / "drive")
    shutil.move(drive.data_file, drive.path / "drive_10.mcap")
    (drive.path / "metadata.yaml").unlink()
    with BagWriter(tmp_path / "early", "mcap") as writer:
        writer.write_image("/cam/image_raw", drive.frames[0], "bayer_rggb8", 5, 5, "cam")
    shutil.move(tmp_path / "early" / "early.mcap", drive.path / "drive_2.mcap")
    frames = read_frames(drive.path)
    assert [frame.source_ns for frame in frames] == [5, *(START_NS + DELAY_NS + i * PERIOD_NS for i in range(5))]
    with Bag(drive.path) as bag:
        assert [file.name for file in bag.files] == ["drive_2.mcap", "drive_10.mcap"]
        assert bag.topics[1].count == 6


def test_the_format_is_detected_from_the_first_bytes_and_not_from_the_suffix(
    tmp_path: Path, write_drive: WriteDrive
) -> None:
    """Users rename files; this MCAP file has the suffix of ROS 1."""
    drive = write_drive(tmp_path / "drive", "mcap")
    renamed = tmp_path / "drive.bag"
    shutil.copy(drive.data_file, renamed)
    assert len(read_frames(renamed)) == 5


def test_offset_and_duration_are_relative_to_the_first_message(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The options `--start-offset` and `--playback-duration` of `ros2 bag play` have the same meaning."""
    drive = write_drive(tmp_path / "drive")
    frames = read_frames(drive.path, start_offset_s=0.1, duration_s=0.25)
    assert [frame.source_ns - DELAY_NS - START_NS for frame in frames] == [PERIOD_NS, 2 * PERIOD_NS, 3 * PERIOD_NS]
    assert [frame.index for frame in frames] == [0, 1, 2]
    source = BagSource(drive.path, duration_s=0.25)
    assert source.frame_count is None
    source.close()


@pytest.mark.parametrize("options", [{"start_offset_s": -1.0}, {"duration_s": 0.0}])
def test_a_negative_offset_or_a_zero_duration_is_refused(
    tmp_path: Path, write_drive: WriteDrive, options: dict[str, Any]
) -> None:
    """A replay without frames would look like an error of the replay."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(SkylaneError, match="give a part within the bag"):
        BagSource(drive.path, **options)


def test_provenance_identifies_the_bag_without_its_folder(tmp_path: Path, write_drive: WriteDrive) -> None:
    """A result file identifies its input by hash and must not contain private paths."""
    drive = write_drive(tmp_path / "drive", "sqlite3")
    source = BagSource(drive.path)
    provenance = source.provenance
    assert source.frame_count == 5
    source.close()
    assert (provenance["kind"], provenance["path"], provenance["format"]) == ("bag", "drive", "sqlite3")
    assert provenance["cameras"] == ["/cam/image_raw"]
    assert len(str(provenance["sha256"])) == 64
    assert str(tmp_path) not in str(provenance)
    twin = write_drive(tmp_path / "again" / "drive", "sqlite3")
    other = BagSource(twin.path)
    assert other.provenance["sha256"] == provenance["sha256"]
    other.close()


def test_timestamps_of_zero_are_replaced_by_the_recording_time_with_one_warning(
    tmp_path: Path, write_drive: WriteDrive, caplog: pytest.LogCaptureFixture
) -> None:
    """Many drivers set no timestamp, and frames that all have the timestamp 0 could not be distinguished."""
    source = BagSource(write_drive(tmp_path / "drive", stamps=False).path)
    with caplog.at_level(logging.WARNING):
        frames = list(source.frames())
    assert [frame.stamp_ns for frame in frames] == [frame.source_ns for frame in frames]
    assert len(caplog.messages) == 1
    assert source.provenance["notes"] == ["stamps of zero were replaced by the bag's time"]
    source.close()


def test_topics_of_labels_and_masks_are_read_only_on_request(tmp_path: Path) -> None:
    """A bag can contain masks of an earlier run, which are not camera images."""
    pixels = np.zeros((2, 2), np.uint8)
    with BagWriter(tmp_path / "drive") as writer:
        for topic in ("/cam/image_raw", "/cam/labels", "/cam/masks"):
            writer.write_image(topic, pixels, "mono8", 1, 1, "cam")
    assert [frame.camera for frame in read_frames(tmp_path / "drive")] == ["/cam/image_raw"]
    assert [frame.camera for frame in read_frames(tmp_path / "drive", topics=["cam/labels"])] == ["/cam/labels"]


def test_a_topic_is_found_with_and_without_its_leading_slash(tmp_path: Path) -> None:
    """Some ROS 1 recorders omit the leading slash, which users do not know."""
    with BagWriter(tmp_path / "drive.bag") as writer:
        writer.write_image("cam/image_raw", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
    for name in ("cam/image_raw", "/cam/image_raw"):
        assert len(read_frames(tmp_path / "drive.bag", topics=[name])) == 1


def test_the_error_for_an_unknown_topic_suggests_the_nearest_name(tmp_path: Path, write_drive: WriteDrive) -> None:
    """A typo is easy to correct."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(UnknownNameError, match="did you mean /cam/image_raw"):
        BagSource(drive.path, topics=["/cam/image_row"])


def test_the_error_for_a_topic_without_images_names_the_image_topics(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The topic exists, so a suggestion of similar names would mislead."""
    drive = write_drive(tmp_path / "drive")
    with pytest.raises(SkylaneError, match=r"CameraInfo messages, not images: images are on /cam/image_raw"):
        BagSource(drive.path, topics=["/cam/camera_info"])


def test_the_error_for_a_bag_without_images_names_its_topics(tmp_path: Path) -> None:
    """Otherwise a replay without any frame would look successful."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_camera_info("/info", 2, 2, 1.0, stamp_ns=1, received_ns=1, frame_id="cam")
    with pytest.raises(SkylaneError, match=r"/info \(sensor_msgs/msg/CameraInfo\)"):
        BagSource(tmp_path / "drive")


def test_the_error_for_a_missing_bag_suggests_the_nearest_name(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The suggestion is a bag in the same folder."""
    write_drive(tmp_path / "drive_01")
    with pytest.raises(SkylaneError, match="did you mean drive_01"):
        BagSource(tmp_path / "drive_10")


def test_a_file_that_is_no_bag_is_refused(tmp_path: Path) -> None:
    """The file starts with the bytes of a video, although its name ends with .bag."""
    path = tmp_path / "drive.bag"
    path.write_bytes(b"RIFF" + bytes(100))
    with pytest.raises(ForeignBagError, match="is not a bag"):
        BagSource(path)


def test_an_undecodable_image_is_an_unreadable_frame_with_its_reason(tmp_path: Path) -> None:
    """Every recorded frame is accounted for, and the frames after it are read."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 7, 7, "cam")
        writer.write_image("/cam", np.zeros((2, 8), np.uint8), "32FC1", 8, 8, "cam")
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 9, 9, "cam")
    good, bad, after = read_frames(tmp_path / "drive")
    assert isinstance(good, Frame)
    assert isinstance(after, Frame)
    assert isinstance(bad, UnreadableFrame)
    assert (bad.index, bad.stamp_ns, bad.camera) == (1, 8, "/cam")
    assert "32FC1" in bad.reason


class TestRealBags:
    """Bags of third-party recorders."""

    def test_ros1_jpeg(self, real_bag: FindBag) -> None:
        """The format is `jpg`, which the ROS documentation does not mention."""
        (frame,) = read_frames(real_bag("fiducials_aruco_images.bag"))
        assert isinstance(frame, Frame)
        assert (frame.pixels.shape, frame.layout) == ((960, 1280, 3), Layout.BGR8)
        assert frame.stamp_ns == 1491682360314066469
        assert frame.source_ns == 1491682361550891160

    def test_ros1_with_zero_stamps_and_png(self, real_bag: FindBag) -> None:
        """The timestamps on both topics are 0."""
        frames = read_frames(real_bag("ros_numpy_test.bag"))
        assert all(isinstance(frame, Frame) and frame.stamp_ns == frame.source_ns > 0 for frame in frames)
        assert {frame.camera: frame.pixels.shape for frame in frames if isinstance(frame, Frame)} == {
            "/image": (240, 360, 3),
            "/compressedimage": (2, 2, 3),
        }

    @pytest.mark.parametrize("path", ["amber_soccer_goal", "amber_soccer_goal/soccer_goal_12.mcap"])
    def test_mcap_with_compressed_messages_and_old_type_names(self, real_bag: FindBag, path: str) -> None:
        """Each message is compressed, which only metadata.yaml states, and the type names lack `/msg/`."""
        frames = read_frames(real_bag(path))
        assert [(frame.pixels.shape, frame.layout) for frame in frames if isinstance(frame, Frame)] == [
            ((480, 640, 3), Layout.RGB8)
        ] * 2

    @pytest.mark.parametrize("path", ["ros2bag_tools_images", "ros2bag_tools_images/images.bag_0.db3"])
    def test_sqlite_without_definitions(self, real_bag: FindBag, path: str) -> None:
        """Old databases contain no message definitions."""
        frames = read_frames(real_bag(path))
        assert [frame.stamp_ns for frame in frames] == [0, 1_000_000_000, 2_000_000_000]
        assert all(isinstance(frame, Frame) and frame.layout is Layout.MONO8 for frame in frames)


def test_frames_are_views_of_the_message_that_opencv_accepts(tmp_path: Path, write_drive: WriteDrive) -> None:
    """A view avoids copying the pixels; it is read-only, which OpenCV must accept."""
    (frame, *_) = read_frames(write_drive(tmp_path / "drive", BagFormat.MCAP).path)
    assert isinstance(frame, Frame)
    assert not frame.pixels.flags.owndata
    assert cv2.cvtColor(frame.pixels, cv2.COLOR_BayerRGGB2BGR).shape == (8, 12, 3)
