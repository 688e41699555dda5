"""The table of sources: the class of each, and how an argument of the command line is recognised as one."""

from typing import NamedTuple

from edge.sources.source import IMAGE_SUFFIXES


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
SOURCES = {
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
}
