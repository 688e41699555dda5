"""Frames of a bag as PNG files."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError, unwritable_message
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout
from shared.imaging.image_codecs import encode


@dataclass(frozen=True, slots=True)
class Extracted:
    """How many frames were written, and what was wrong with those that were not."""

    frames: int
    unreadable: tuple[str, ...]


def extract(
    path: Path,
    folder: Path,
    *,
    topics: Sequence[str] = (),
    raw: bool = False,
    method: str = "bilinear",
    progress: Callable[[], None] | None = None,
) -> Extracted:
    """Write every frame as `folder/<camera>/<index>_<stamp in ns>.png`.

    Bayer frames are demosaiced by `method`, or with `raw` written as the sensor gave them.

    Raises:
        SkylaneError: the bag or a topic is missing, or a file cannot be written; those before it stay.
    """
    source = BagSource(path, topics=topics)
    written = 0
    unreadable = []
    try:
        for frame in source.frames():
            if progress is not None:
                progress()
            if isinstance(frame, Frame):
                target = folder / _file_name(frame.camera) / f"{frame.index:06d}_{frame.stamp_ns}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_png(frame, method, raw=raw))
                written += 1
            else:
                unreadable.append(f"{frame.camera} frame {frame.index}: {frame.reason}")
    except OSError as error:
        before = f"; {written} frames were written before" if written else ""
        raise SkylaneError(unwritable_message(f"folder {folder}", error, "folder") + before) from error
    finally:
        source.close()
    return Extracted(written, tuple(unreadable))


def _png(frame: Frame, method: str, *, raw: bool) -> bytes | bytearray | memoryview:
    pixels, layout = frame.pixels, frame.layout
    if layout.is_bayer and not raw:
        pixels, layout = to_colour(pixels, layout, Layout.BGR8, method), Layout.BGR8
    return encode(pixels, layout, "png", 100)


def _file_name(topic: str) -> str:
    """A topic as a folder's name: whatever a bag calls it, it stays within ours."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", topic.strip("/")) or "camera"
