"""The process of a view: asks for what is new whenever it can show it, so that only the newest frame waits.

Run as a module; it writes lines of JSON, the first one with its address or an error, and one for each update that it asks for.
"""

import json
import sys
import time

from edge.sinks.scene import Reduction
from edge.view.messages import ViewSettings, ViewUpdate, read_message
from edge.view.viewer import VIEWERS, Viewer
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.registry import load
from shared.threads import lower_priority

# From a picture as it is to one that is barely recognisable.
_REDUCTIONS = (
    Reduction(),
    Reduction(1.0, 60),
    Reduction(0.75, 55),
    Reduction(0.5, 55),
    Reduction(0.5, 35),
    Reduction(0.35, 35),
    Reduction(0.25, 30),
)
_UPDATE_S = (
    0.2  # With a limit, the bytes of an update are allowed to take so long, unless its pictures are the smallest.
)
_GROWTH = 2.5  # The next larger pictures have at most so many times the bytes.


class ViewPace:
    """Keeps what is sent below a rate, by waiting and by reducing pictures."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = 0 if bytes_per_s is None else len(_REDUCTIONS) - 1

    @property
    def reduction(self) -> Reduction:
        """How much the next pictures are to be reduced."""
        return _REDUCTIONS[self._level]

    def wait(self, size: int, *, has_pictures: bool) -> None:
        """Waits until the link has had time for what was sent, and chooses the reduction of the next pictures by its size."""
        if self._bytes_per_s is None:
            return
        allowed = self._bytes_per_s * _UPDATE_S
        if has_pictures and size > allowed:
            self._level = min(self._level + 1, len(_REDUCTIONS) - 1)
        elif has_pictures and size * _GROWTH < allowed:
            self._level = max(self._level - 1, 0)
        time.sleep(size / self._bytes_per_s)


def show(viewer: Viewer, update: ViewUpdate, settings: ViewSettings, reduction: Reduction) -> int:
    """Shows what is new; returns about how many bytes a viewer receives for it."""
    size = sum(
        viewer.scene.show(viewed.frame(settings.card), viewed.time_ns, reduction)
        for viewed in sorted(update.frames, key=lambda each: each.time_ns)
    )
    size += sum(viewer.scene.measure(row, update.time_ns) for row in update.rows)
    return size + viewer.scene.count(update.outcomes, update.in_flight, update.time_ns)


def main() -> None:
    """Serves a viewer until the end of standard input."""
    lower_priority()
    cv2.setNumThreads(1)
    settings = read_message(sys.stdin.buffer, ViewSettings)
    assert settings is not None
    try:
        viewer: Viewer = load("viewer", VIEWERS, settings.viewer)(settings)
    except SkylaneError as error:
        _reply(error=str(error))
        sys.exit(1)
    _reply(address=viewer.address, note=viewer.note)
    pace = ViewPace(settings.bytes_per_s)
    try:
        while (update := read_message(sys.stdin.buffer, ViewUpdate)) is not None:
            size = show(viewer, update, settings, pace.reduction)
            viewer.check()
            pace.wait(size, has_pictures=bool(update.frames))
            _reply()
    except SkylaneError as error:
        sys.exit(str(error))
    except BrokenPipeError:  # The vehicle node was killed.
        pass
    finally:
        viewer.close()


def _reply(**fields: str) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201  To the vehicle node.


if __name__ == "__main__":
    main()
