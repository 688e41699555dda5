"""How sources are opened: by their kind, with the options that have an effect."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.sources.source import SourceError, kind_of, open_source
from shared.imaging.frames import Frame
from tests.support.video_streams import picture, write_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with an image, a folder of images and a video."""
    (tmp_path / "street").mkdir()
    for path in (tmp_path / "0.png", tmp_path / "street" / "0.png"):
        cv2.imwrite(str(path), np.zeros((8, 8), np.uint8))
    write_file(tmp_path / "street.mp4", "libx264", {"bf": "0"}, 10)
    return tmp_path


def test_a_video_is_played_with_its_frame_times(folder: Path) -> None:
    """Offset and duration refer to these times."""
    video = str(folder / "street.mp4")
    source = open_source(video)
    frames = [frame for frame in source.frames() if isinstance(frame, Frame)]
    assert source.frame_count == 10
    assert [frame.source_ns for frame in frames] == [index * 10**8 for index in range(10)]
    differences = [
        np.abs(frame.pixels[..., ::-1].astype(int) - picture(index)).mean() for index, frame in enumerate(frames)
    ]
    assert max(differences) < 16
    part = [frame.stamp_ns for frame in open_source(video, start_offset_s=0.2, duration_s=0.3).frames()]
    assert part == [200_000_000, 300_000_000, 400_000_000]


@pytest.mark.parametrize("name", ["street", "street.mp4"])
def test_only_bags_and_folders_of_cameras_accept_topics(folder: Path, name: str) -> None:
    """An option without effect would mislead the user."""
    with pytest.raises(SourceError, match="leave --topic out"):
        open_source(str(folder / name), topics=("/left",))


def test_a_missing_camera_is_an_error() -> None:
    """The message says what to check."""
    with pytest.raises(SourceError, match="'camera:x' names no camera: give its number, as in camera:0"):
        open_source("camera:x")
    with pytest.raises(SourceError, match="camera 'camera:63' cannot be opened: check that it is plugged in"):
        open_source("camera:63")
    with pytest.raises(SourceError, match="is live: leave --topic and --start-offset out"):
        open_source("camera:0", start_offset_s=1.0)


def test_the_kind_of_a_source_follows_from_its_name(folder: Path) -> None:
    """The user needs no option for it."""
    (folder / "a.BAG").touch()
    (folder / "ros2").mkdir()
    (folder / "ros2" / "part_0.db3").touch()
    assert kind_of(str(folder / "street")) == "folder"
    assert kind_of(str(folder / "a.BAG")) == "bag"
    assert kind_of(str(folder / "ros2")) == "bag"
    assert kind_of("/dev/video0") == kind_of("camera:0") == "camera"
    (folder / "empty").mkdir()
    with pytest.raises(SourceError, match="holds neither a bag nor images"):
        kind_of(str(folder / "empty"))
