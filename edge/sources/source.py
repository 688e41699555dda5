"""The contract and the table of sources of frames; opens a source by its name, and checks those of plug-ins."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from shared.errors import SkylaneError
from shared.imaging.bit_depth import Bits
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.registry import PluginTable, failures_of, load, require

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".webp")


class SourceError(SkylaneError):
    """A source cannot be opened or read."""


class FrameSource(Protocol):
    """Yields frames in the order of `source_ns`, from a bag, a video, a folder or a camera.

    Built as `Source(path, topics=…, start_offset_s=…, duration_s=…)`: cameras to play, seconds to skip and to play
    (None: all); also with the `options` of its row. Raises a SkylaneError if the path or an argument cannot be used.
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
    prefixes: tuple[str, ...] = ()  # Prefixes of names that are not paths; the source gets them as strings.
    suffixes: tuple[str, ...] = ()  # Suffixes of files.
    contents: tuple[str, ...] = ()  # Suffixes of the files in a folder.
    depth: int = 1  # Levels of folders in which these files may be.
    options: tuple[str, ...] = ()  # Those of the arguments `bits` and `encodings` that its constructor has.
    is_live: bool = False  # True if a frame is due when it is grabbed, not at a recorded time.


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
        SourceError: the file does not exist or its kind is unknown.
    """
    if (named := _named_kind(source)) is not None:
        return named
    path = Path(source)
    if not os.path.exists(path):  # noqa: PTH110  False for a name that is too long, too.
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

    `bits` and `encodings`: how 16-bit and raw images are read, for the sources that support it.

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


class CheckedSource:
    """A source of another distribution, whose frames are checked: a wrong one ends the run with a PluginError."""

    def __init__(self, plugin: str, make: Callable[[], Any]) -> None:
        """`plugin`: kind, name and distribution, for messages; `make` opens the source."""
        self._plugin = plugin
        with failures_of(plugin):
            self._source = make()
            self.frame_count = count = self._source.frame_count
        require(plugin, "frame_count", count, "an int or None", is_valid=count is None or _is_count(count))

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource."""
        with failures_of(self._plugin):
            provenance = self._source.provenance
        require(self._plugin, "provenance", provenance, "a mapping", is_valid=isinstance(provenance, Mapping))
        return dict(provenance)

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        last_ns = 0
        with failures_of(self._plugin):
            for frame in self._source.frames():
                self._check(frame)
                is_later = frame.source_ns >= last_ns
                require(
                    self._plugin,
                    "source_ns",
                    frame.source_ns,
                    f"{last_ns} or more: it never decreases",
                    is_valid=is_later,
                )
                last_ns = frame.source_ns
                yield frame

    def close(self) -> None:
        """See FrameSource."""
        with failures_of(self._plugin):
            self._source.close()

    def _check(self, frame: Any) -> None:
        is_frame = isinstance(frame, Frame | UnreadableFrame)
        require(self._plugin, "a frame", frame, "a Frame or an UnreadableFrame", is_valid=is_frame)
        camera = frame.camera
        is_name = isinstance(camera, str) and bool(camera)
        require(self._plugin, "camera", camera, "the name of a camera", is_valid=is_name)
        for field in ("index", "stamp_ns", "source_ns", "read_ns"):
            value = getattr(frame, field)
            require(self._plugin, field, value, "an int of at least 0", is_valid=_is_count(value))
        if isinstance(frame, UnreadableFrame):
            require(self._plugin, "reason", frame.reason, "text", is_valid=isinstance(frame.reason, str))
            return
        layout, pixels = frame.layout, frame.pixels
        is_layout = isinstance(layout, Layout)
        require(self._plugin, "layout", layout, "a Layout, such as Layout.RGB8", is_valid=is_layout)
        is_image = isinstance(pixels, np.ndarray) and pixels.ndim >= 2 and pixels.size > 0  # Rows and columns.
        is_image = is_image and pixels.dtype == layout.dtype and pixels.flags.c_contiguous
        is_image = is_image and pixels.shape == layout.shape(*pixels.shape[:2])
        wanted = f"a C-contiguous array of {layout.dtype}, {'H×W' if layout.channels == 1 else 'H×W×3'}"
        require(self._plugin, "pixels", pixels, wanted, is_valid=is_image)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
