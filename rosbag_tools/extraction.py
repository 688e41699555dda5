"""Writes the frames of a bag as PNG files."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError, unwritable_message
from shared.files import write_file
from shared.imaging.bayer import to_colour
from shared.imaging.bit_depth import Bits
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.image_codecs import encode


@dataclass(frozen=True, slots=True)
class Extracted:
    """Result of an extraction: the number of frames written, and why the others were not."""

    frames: int
    unreadable: tuple[str, ...]
    without_frames: dict[str, str]  # Cameras without a written frame, with the reason of the first frame.


def extract(
    path: Path,
    folder: Path,
    *,
    topics: Sequence[str] = (),
    raw: bool = False,
    bits: Bits = "auto",
    encodings: Sequence[str] = (),
    progress: Callable[[int | None], object] = lambda _: None,
) -> Extracted:
    """Writes every frame as `folder/<camera>/<index>_<stamp in ns>.png`.

    Bayer frames are demosaiced bilinearly, or written unchanged with `raw`, as are 16-bit values. `bits` and `encodings`:
    see `ImageDecoder`.

    Raises:
        SkylaneError: the bag or a topic is missing, or a file cannot be written; earlier files are kept.
    """
    source = BagSource(path, topics=topics, bits=bits, encodings=encodings, keep_values=raw)
    written: Counter[str] = Counter()
    unreadable = []
    reasons: dict[str, str] = {}
    try:
        for frame in source.frames():
            progress(source.frame_count)
            try:
                data = _png(frame, raw=raw)
            except SkylaneError as error:
                reasons.setdefault(frame.camera, str(error))
                unreadable.append(f"{frame.camera} frame {frame.index}: {error}")
                continue
            target = folder / source.names[frame.camera] / f"{frame.index:06d}_{frame.stamp_ns}.png"
            write_file(target, bytes(data), folder)
            written[frame.camera] += 1
    except OSError as error:
        before = f"; {written.total()} frames were written before" if written else ""
        raise SkylaneError(unwritable_message(f"folder {folder}", error, "folder") + before) from error
    finally:
        source.close()
    without_frames = {camera: reason for camera, reason in reasons.items() if camera not in written}
    return Extracted(written.total(), tuple(unreadable), without_frames)


def _png(frame: Frame | UnreadableFrame, *, raw: bool) -> bytes | bytearray | memoryview:
    """Encodes a frame as PNG; raises a SkylaneError with the reason if it has no picture."""
    if isinstance(frame, UnreadableFrame):
        raise SkylaneError(frame.reason)
    pixels, layout = frame.pixels, frame.layout
    if layout.is_bayer and not raw:
        pixels, layout = to_colour(pixels, layout, Layout.BGR8, "bilinear"), Layout.BGR8
    return encode(pixels, layout, "png", 100)
