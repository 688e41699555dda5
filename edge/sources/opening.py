"""Opens a source, and detects its kind from its name."""

from collections.abc import Sequence
from pathlib import Path

from edge.sources.source import IMAGE_SUFFIXES, SOURCES, FrameSource, SourceError
from shared.imaging.bit_depth import Bits
from shared.registry import load


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
    if not path.exists():
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
    frame_source: FrameSource = load("source", SOURCES, kind)(
        Path(source) if _named_kind(source) is None else source,
        topics=topics,
        start_offset_s=start_offset_s,
        duration_s=duration_s,
        **given,
    )
    return frame_source


def _named_kind(source: str) -> str | None:
    """Returns the kind of a source that is no path: by its prefix, or `NAME:` of a plug-in of another distribution."""
    scheme = source.partition(":")[0]
    if scheme != source and SOURCES.is_external(scheme):
        return scheme
    return next((kind for kind, entry in SOURCES.items() if source.startswith(entry.prefixes)), None)
