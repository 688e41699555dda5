"""The check of what a source of another distribution gives."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.registry import failures_of, require


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
