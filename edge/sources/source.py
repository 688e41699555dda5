"""The contract of a source of frames. The table is in `table.py`, `opening.py` opens one."""

from collections.abc import Iterator
from typing import Protocol

from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame

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
