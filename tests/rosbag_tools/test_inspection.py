import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.inspection import inspect
from rosbag_tools.writer import BagWriter
from shared.files import file_sha256
from tests.rosbag_tools.conftest import PATHS, WriteDrive


@pytest.mark.parametrize(
    ("bag_format", "compression"), [*((each, "none") for each in BagFormat), (BagFormat.MCAP, "zstd-message")]
)
def test_the_report_describes_the_written_messages(
    tmp_path: Path, write_drive: WriteDrive, bag_format: str, compression: str
) -> None:
    """It has the topics, types, counts, encodings, resolutions, rates and gaps."""
    drive = write_drive(tmp_path / PATHS[bag_format], bag_format, compression)
    report = inspect(drive.path)
    info, image = report.topics
    assert (report.format, report.messages, report.notes) == (bag_format, 10, ())
    assert report.duration_s == pytest.approx(0.4)
    assert report.sha256 == file_sha256(drive.data_file)
    assert report.size_bytes == drive.data_file.stat().st_size
    assert (info.name, info.type) == ("/cam/camera_info", "sensor_msgs/msg/CameraInfo")
    assert (info.encodings, info.resolutions) == ({}, {})
    assert (image.name, image.count) == ("/cam/image_raw", 5)
    assert (image.encodings, image.resolutions) == ({"bayer_rggb8": 5}, {"12×8": 5})
    assert image.rate_hz == pytest.approx(10)
    assert (image.gaps, image.worst_gap_s) == (0, None)
    assert json.loads(json.dumps(asdict(report)))["topics"][1]["rate_hz"] == pytest.approx(10)


def test_gaps_are_relative_to_the_usual_period(tmp_path: Path) -> None:
    """Two lost frames in a row are one gap of three periods."""
    with BagWriter(tmp_path / "drive") as writer:
        for tenth in (0, 1, 2, 5, 6, 7, 9, 10):
            writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1 + tenth * 10**8, "cam")
    (topic,) = inspect(tmp_path / "drive").topics
    assert topic.gaps == 2
    assert topic.worst_gap_s == pytest.approx(0.3)
    assert topic.rate_hz == pytest.approx(7)
