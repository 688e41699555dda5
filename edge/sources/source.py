"""The contract and the table of sources of frames, and how a source is opened by its name."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from edge.sources.checked_source import CheckedSource
from shared.errors import SkylaneError
from shared.imaging.bit_depth import Bits
from shared.imaging.frames import Frame, UnreadableFrame
from shared.registry import PluginTable, load

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
        """Identifies the input in the run record: kind, path, and where they apply SHA-256, cameras and notes.

        `synthetic` is true if all frames are marked as rendered by Skylane.
        """

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
    options: tuple[str, ...] = ()  # Which of the arguments `bits` and `encodings` its constructor has.
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


def is_live(source: str) -> bool:
    """Returns whether an argument names a live source, such as `camera:0`."""
    kind = _named_kind(source)
    return kind is not None and SOURCES[kind].is_live


def kind_of(source: str) -> str:
    """Returns the key in SOURCES for an argument.

    Raises:
        SourceError: the file does not exist or is of no known kind.
    """
    if (named := _named_kind(source)) is not None:
        return named
    path = Path(source)
    if not os.path.exists(path):  # noqa: PTH110  A name that is too long does not exist either.
        raise SourceError(f"{source} does not exist: give a bag, a video file, a folder of images or camera:0")
    if path.is_dir():
        for kind, entry in SOURCES.items():
            items = (item for level in range(entry.depth) for item in path.glob("*/" * level + "*"))
            if any(item.name.lower().endswith(entry.contents) for item in items):
                return kind
        raise SourceError(f"folder {source} holds neither a bag nor images ({', '.join(IMAGE_SUFFIXES)})")
    for kind, entry in SOURCES.items():
        if path.name.lower().endswith(entry.suffixes):
            return kind
    known = ", ".join(suffix for entry in SOURCES.values() for suffix in entry.suffixes)
    raise SourceError(
        f"{source} is no source: its suffix is not one of {known}; for a single image use 'skylane model run'"
    )


def open_source(
    source: str,
    *,
    topics: Sequence[str] = (),
    start_offset_s: float = 0.0,
    duration_s: float | None = None,
    bits: Bits = "auto",
    encodings: Sequence[str] = (),
) -> FrameSource:
    """Opens a source, to be played from `start_offset_s` after its start for `duration_s`.

    `bits` and `encodings`: how 16-bit and raw images are read, for the sources that have them.

    Raises:
        SkylaneError: the source does not exist, cannot be read, or lacks a topic.
    """
    kind = kind_of(source)
    given = ({"bits": bits} if bits != "auto" else {}) | ({"encodings": encodings} if encodings else {})
    for option in given.keys() - set(SOURCES[kind].options):
        flag = {"bits": "--bits", "encodings": "--encoding"}[option]
        raise SourceError(f"{source} is a {kind}, whose images say how they are encoded: leave {flag} out")
    make = load("source", SOURCES, kind)
    path = Path(source) if _named_kind(source) is None else source
    span = {"start_offset_s": start_offset_s, "duration_s": duration_s}
    if SOURCES.is_external(kind):
        return CheckedSource(SOURCES.describe(kind), lambda: make(path, topics=topics, **span, **given))
    frame_source: FrameSource = make(path, topics=topics, **span, **given)
    return frame_source


def _named_kind(source: str) -> str | None:
    """Returns the kind of a source that is no path: by its prefix, or `NAME:` of a plug-in of another distribution."""
    scheme = source.partition(":")[0]
    if scheme != source and SOURCES.is_external(scheme):
        return scheme
    return next((kind for kind, entry in SOURCES.items() if source.startswith(entry.prefixes)), None)
