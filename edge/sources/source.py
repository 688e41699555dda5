"""The contract and the table of sources of frames; `opening.py` opens one."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame
from shared.registry import PluginTable

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".webp")


class SourceError(SkylaneError):
    """A source cannot be opened or read."""


class FrameSource(Protocol):
    """Yields frames in the order of `source_ns`, from a bag, a video, a folder or a camera.

    Built as `Source(path, topics=…, start_offset_s=…, duration_s=…)`: the path, the cameras to play, the seconds to skip
    at the start, and the seconds to play or None; and with `bits` and `encodings` if its row in the table names them. Raises a SkylaneError for what it cannot do.
    """

    @property
    def frame_count(self) -> int | None:
        """The number of frames, or None if it is unknown, as for a camera."""

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """Identifies the input in the run record: kind, path, SHA-256, cameras."""

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """Yields every frame once, in order."""

    def close(self) -> None:
        """Releases files and devices."""


class SourceEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a FrameSource.
    extra: str  # The pip extra that installs its library.
    prefixes: tuple[str, ...] = ()  # Starts of names that are no files; the source gets them as strings.
    suffixes: tuple[str, ...] = ()  # Ends of the names of files.
    contents: tuple[str, ...] = ()  # Ends of the names of files in a folder.
    depth: int = 1  # Levels of folders in which these files may be.
    options: tuple[str, ...] = ()  # Further arguments of its constructor, of `bits` and `encodings`.
    is_live: bool = False  # Whether a frame is due when it is taken, not at a recorded time.


_BAGS = (".bag", ".db3", ".mcap", ".db3.zstd", ".mcap.zstd", ".bag.active")
_VIDEOS = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".ts")
SOURCES = PluginTable(
    "source",
    "skylane.sources",
    SourceEntry,
    {
        "bag": SourceEntry(
            "rosbag_tools.reading.frames:BagSource",
            "edge",
            (),
            _BAGS,
            ("metadata.yaml", *_BAGS),
            options=("bits", "encodings"),
        ),
        "video": SourceEntry("edge.sources.video:VideoSource", "edge", suffixes=_VIDEOS),
        "folder": SourceEntry(
            "edge.sources.folder:FolderSource", "edge", contents=IMAGE_SUFFIXES, depth=4, options=("bits",)
        ),
        "camera": SourceEntry("edge.sources.camera:CameraSource", "edge", ("camera:", "/dev/video"), is_live=True),
    },
)
