"""The table of sources, and the detection of a source's kind from its name."""

from collections.abc import Sequence
from pathlib import Path

from shared.errors import SkylaneError
from shared.imaging.frames import FrameSource
from shared.registry import Entry, load

SOURCES = {
    "bag": Entry("rosbag_tools.reading.frames:BagSource", "edge"),
    "video": Entry("edge.sources.video:VideoSource", "edge"),
    "folder": Entry("edge.sources.folder:FolderSource", "edge"),
    "camera": Entry("edge.sources.camera:CameraSource", "edge"),
}
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
_BAGS = (".bag", ".db3", ".mcap")
_VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".ts")


class SourceError(SkylaneError):
    """A source cannot be opened or read."""


def is_camera(source: str) -> bool:
    """Returns whether an argument names a camera: `camera:0`, or a device."""
    return source.startswith(("camera:", "/dev/video"))


def kind_of(source: str) -> str:
    """Returns the key in SOURCES for an argument: a camera, a bag, a video file or a folder of images.

    Raises:
        SourceError: the file does not exist or is none of these.
    """
    if is_camera(source):
        return "camera"
    path = Path(source)
    if not path.exists():
        raise SourceError(f"{source} does not exist: give a bag, a video file, a folder of images or camera:0")
    if path.is_dir():
        if any(path.glob("metadata.yaml")) or any(item.suffix in _BAGS for item in path.iterdir()):
            return "bag"
        if any(item.suffix.lower() in IMAGE_SUFFIXES for depth in ("*", "*/*") for item in path.glob(depth)):
            return "folder"
        raise SourceError(f"folder {source} holds neither a bag nor images ({', '.join(IMAGE_SUFFIXES)})")
    if path.suffix.lower() in _BAGS:
        return "bag"
    if path.suffix.lower() in _VIDEOS:
        return "video"
    known = ", ".join((*_BAGS, *_VIDEOS))
    raise SourceError(
        f"{source} is no source: its suffix is not one of {known}; for a single image use 'skylane model run'"
    )


def open_source(
    source: str, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
) -> FrameSource:
    """Opens a source, to be played from `start_offset_s` after its start for `duration_s`.

    Raises:
        SkylaneError: the source does not exist, cannot be read, or lacks a topic.
    """
    kind = kind_of(source)
    frame_source: FrameSource = load("source", SOURCES, kind)(
        source if kind == "camera" else Path(source),
        topics=topics,
        start_offset_s=start_offset_s,
        duration_s=duration_s,
    )
    return frame_source
