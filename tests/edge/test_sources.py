"""Sources of frames."""

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from edge.sources.source import SourceError, kind_of, open_source
from rosbag_tools.drive.recording import DrivePlan, record
from rosbag_tools.extraction import extract
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout, UnreadableFrame

HEIGHT, WIDTH = 32, 48


def _noise(index: int, shape: tuple[int, ...] = (HEIGHT, WIDTH, 3)) -> Any:
    return np.random.default_rng(index).integers(0, 256, shape, np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with ten images and a text file."""
    path = tmp_path / "street"
    path.mkdir()
    for index in range(10):
        cv2.imwrite(str(path / f"{index:02d}.png"), _noise(index))
    (path / "notes.txt").write_text("x")
    return path


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Returns a video of one second with ten frames."""
    path = tmp_path / "street.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(10):
            image = np.full((HEIGHT, WIDTH, 3), 20 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def test_a_folder_is_played_in_the_order_of_its_names(folder: Path) -> None:
    """The pixels are unchanged; there are ten images per second."""
    source = open_source(str(folder))
    frames = list(source.frames())
    assert source.frame_count == len(frames) == 10
    for index, frame in enumerate(frames):
        assert isinstance(frame, Frame)
        np.testing.assert_array_equal(frame.pixels, _noise(index))
        assert (frame.layout, frame.camera, frame.index) == (Layout.BGR8, "street", index)
        assert frame.stamp_ns == frame.source_ns == index * 10**8
        assert frame.read_ns > 0
    assert list(source.frames())[0].index == 0  # noqa: RUF015 (the source can be read twice)


@pytest.mark.parametrize(
    ("pixels", "layout"),
    [
        (_noise(0, (HEIGHT, WIDTH)), Layout.MONO8),
        (_noise(0, (HEIGHT, WIDTH)).astype(np.uint16) * 257, Layout.MONO16),
        (_noise(0, (HEIGHT, WIDTH, 4)), Layout.BGR8),
        (_noise(0).astype(np.uint16) * 257, Layout.BGR8),
    ],
    ids=["grey", "16-bit grey", "with alpha", "16-bit colour"],
)
def test_images_of_every_pixel_format_are_read(tmp_path: Path, pixels: Any, layout: Layout) -> None:
    """Each becomes the layout that is closest to the file."""
    cv2.imwrite(str(tmp_path / "0.png"), pixels)
    (frame,) = open_source(str(tmp_path)).frames()
    assert isinstance(frame, Frame)
    assert (frame.layout, frame.pixels.dtype, frame.pixels.shape) == (
        layout, layout.dtype, layout.shape(HEIGHT, WIDTH),
    )  # fmt: skip
    if layout is not Layout.BGR8:
        np.testing.assert_array_equal(frame.pixels, pixels)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(50)])
def test_an_unreadable_image_is_an_unreadable_frame(folder: Path, content: bytes) -> None:
    """It keeps its place with a reason, and the other images are played."""
    (folder / "05.png").write_bytes(content)
    frames = list(open_source(str(folder)).frames())
    assert len(frames) == 10
    broken = frames[5]
    assert isinstance(broken, UnreadableFrame)
    assert "05.png" in broken.reason
    assert all(isinstance(frame, Frame) for frame in frames[:5] + frames[6:])


def test_a_part_of_a_folder_can_be_played(folder: Path) -> None:
    """Offset and duration refer to ten images per second."""
    source = open_source(str(folder), start_offset_s=0.3, duration_s=0.4)
    pixels = [frame.pixels for frame in source.frames() if isinstance(frame, Frame)]
    np.testing.assert_array_equal(pixels, [_noise(index) for index in (3, 4, 5, 6)])
    with pytest.raises(SourceError, match="has 10 images, none of them in the selected time"):
        open_source(str(folder), start_offset_s=1.0)


def test_the_folders_of_an_extracted_bag_are_cameras(tmp_path: Path) -> None:
    """`skylane bag extract` writes one folder per camera."""
    record(tmp_path / "drive", DrivePlan(frames=3, width=32, height=16))
    extract(tmp_path / "drive", tmp_path / "png")
    (camera,) = (tmp_path / "png").iterdir()
    shutil.copytree(camera, tmp_path / "png" / "rear")
    frames = list(open_source(str(tmp_path / "png")).frames())
    assert [(frame.camera, frame.index) for frame in frames] == [
        (name, index) for index in range(3) for name in ("rear", camera.name)
    ]
    rear = open_source(str(tmp_path / "png"), topics=["rear"], start_offset_s=0.1)
    assert [(frame.camera, frame.index) for frame in rear.frames()] == [("rear", 0), ("rear", 1)]
    with pytest.raises(SkylaneError, match=r"no camera 'front': it has rear, "):
        open_source(str(tmp_path / "png"), topics=["front"])


def test_the_hash_of_a_folder_depends_on_its_contents(folder: Path) -> None:
    """A result must be traceable to its input."""
    before = open_source(str(folder)).provenance
    assert before == open_source(str(folder)).provenance
    cv2.imwrite(str(folder / "03.png"), _noise(99))
    assert before["sha256"] != open_source(str(folder)).provenance["sha256"]


def test_a_video_is_played_with_its_frame_times(video: Path) -> None:
    """Offset and duration refer to these times."""
    source = open_source(str(video))
    frames = [frame for frame in source.frames() if isinstance(frame, Frame)]
    assert source.frame_count == 10
    assert [frame.source_ns for frame in frames] == [index * 10**8 for index in range(10)]
    assert [abs(int(frame.pixels.mean()) - 20 * index) < 8 for index, frame in enumerate(frames)] == [True] * 10
    part = [frame.stamp_ns for frame in open_source(str(video), start_offset_s=0.2, duration_s=0.3).frames()]
    assert part == [200_000_000, 300_000_000, 400_000_000]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_damaged_video_ends_with_a_reason(video: Path, share: float) -> None:
    """Damage at any position causes an error for the user or unreadable frames, nothing else."""
    data = bytearray(video.read_bytes())
    start = int(len(data) * share)
    data[start : start + 200] = bytes(len(data[start : start + 200]))
    video.write_bytes(data)
    try:
        frames = list(open_source(str(video)).frames())
    except SkylaneError as error:
        assert "street.mp4" in str(error)  # noqa: PT017 (both outcomes are valid)
    else:
        assert all(isinstance(frame, Frame | UnreadableFrame) for frame in frames)


@pytest.mark.parametrize("make", [lambda path: path / "street", lambda path: path / "street.mp4"])
def test_only_bags_and_folders_of_cameras_accept_topics(
    folder: Path, video: Path, make: Callable[[Path], Path]
) -> None:
    """An option without effect would mislead the user."""
    del folder
    with pytest.raises(SourceError, match="leave --topic out"):
        open_source(str(make(video.parent)), topics=("/left",))


def test_a_missing_camera_is_an_error() -> None:
    """The message says what to check."""
    with pytest.raises(SourceError, match="'camera:x' names no camera: give its number, as in camera:0"):
        open_source("camera:x")
    with pytest.raises(SourceError, match="camera 'camera:63' cannot be opened: check that it is plugged in"):
        open_source("camera:63")
    with pytest.raises(SourceError, match="is live: leave --topic and --start-offset out"):
        open_source("camera:0", start_offset_s=1.0)


def test_the_kind_of_a_source_follows_from_its_name(folder: Path, tmp_path: Path) -> None:
    """The user needs no option for it."""
    (tmp_path / "a.BAG").touch()
    (tmp_path / "ros2").mkdir()
    (tmp_path / "ros2" / "part_0.db3").touch()
    assert kind_of(str(folder)) == "folder"
    assert kind_of(str(tmp_path / "a.BAG")) == "bag"
    assert kind_of(str(tmp_path / "ros2")) == "bag"
    assert kind_of("/dev/video0") == kind_of("camera:0") == "camera"
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds neither a bag nor images"):
        kind_of(str(tmp_path / "empty"))
