"""The process of a view: takes the newest frame from a pipe whenever it can show one, and paces what it sends.

Run as a module with a pipe as standard input; it writes its address, or an error, as one line of JSON.
"""

import json
import sys
import threading
import time
from collections import deque
from typing import BinaryIO

from edge.sinks.scene import Reduction
from edge.view.messages import (
    MAX_ROWS,
    ViewedCounts,
    ViewedFrame,
    ViewedRow,
    ViewMessage,
    ViewSettings,
    frame_result,
    read_message,
)
from edge.view.viewer import VIEWERS, Viewer
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.registry import load
from shared.threads import lower_priority

_CHECK_S = 0.5
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
_FRAME_S = (
    0.2  # With a limit, a frame may take this long to send: at least five frames per second, or the smallest ones.
)
_GROWTH = 2.5  # The next larger picture has at most so many times the bytes.


class Inbox:
    """What waits to be shown: the newest frame of each camera and kind, and the latest rows. One thread adds, one takes."""

    def __init__(self) -> None:
        self.has_ended = False
        self._frames: dict[tuple[str, bool], ViewedFrame] = {}
        self._rows: deque[ViewedRow] = deque(maxlen=MAX_ROWS)
        self._counts: ViewedCounts | None = None
        self._changed = threading.Condition()

    def read(self, pipe: BinaryIO) -> None:
        """Adds messages until the end of the pipe; the body of a thread."""
        while (message := read_message(pipe)) is not None:
            assert not isinstance(message, ViewSettings)
            self._add(message)
        with self._changed:
            self.has_ended = True
            self._changed.notify()

    def take(self, timeout_s: float) -> list[ViewMessage]:
        """Returns what waits, the oldest first; empty after the timeout, and at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._rows or self.has_ended, timeout_s)
            counts = [] if self._counts is None else [self._counts]
            waiting: list[ViewMessage] = [*self._rows, *self._frames.values(), *counts]
            self._rows.clear()
            self._frames.clear()
            self._counts = None
        return sorted(waiting, key=lambda message: message.time_ns)

    def _add(self, message: ViewMessage) -> None:
        with self._changed:
            if isinstance(message, ViewedFrame):
                self._frames[message.camera, message.age_ns is None] = message
            elif isinstance(message, ViewedRow):
                self._rows.append(message)
            elif isinstance(message, ViewedCounts):
                self._counts = message
            self._changed.notify()


class ViewPace:
    """Keeps what is sent below a rate, by waiting and by reducing pictures."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = 0 if bytes_per_s is None else len(_REDUCTIONS) - 1
        self._free_s = 0.0  # Time from which the next frame may be sent.

    @property
    def reduction(self) -> Reduction:
        """How much the next picture is to be reduced."""
        return _REDUCTIONS[self._level]

    def wait(self) -> None:
        """Waits until the next frame may be sent."""
        time.sleep(max(0.0, self._free_s - time.monotonic()))

    def sent(self, size: int, pictures: int) -> None:
        """Accounts for the bytes that were sent, for some pictures among them."""
        if self._bytes_per_s is None:
            return
        self._free_s = max(self._free_s, time.monotonic()) + size / self._bytes_per_s
        if pictures:
            allowed = self._bytes_per_s * _FRAME_S
            if size > allowed:
                self._level = min(self._level + 1, len(_REDUCTIONS) - 1)
            elif size * _GROWTH < allowed:
                self._level = max(self._level - 1, 0)


def show(viewer: Viewer, messages: list[ViewMessage], settings: ViewSettings, reduction: Reduction) -> int:
    """Shows messages; returns about how many bytes a viewer receives for them."""
    size = 0
    for message in messages:
        if isinstance(message, ViewedFrame):
            size += viewer.scene.show(frame_result(message, settings.card), message.time_ns, reduction)
        elif isinstance(message, ViewedRow):
            size += viewer.scene.measure(message.row, message.time_ns)
        elif isinstance(message, ViewedCounts):
            size += viewer.scene.count(message.outcomes, message.in_flight, message.time_ns)
    return size


def main() -> None:
    """Serves a viewer until the end of standard input."""
    lower_priority()
    cv2.setNumThreads(1)
    settings = read_message(sys.stdin.buffer)
    assert isinstance(settings, ViewSettings)
    try:
        viewer: Viewer = load("viewer", VIEWERS, settings.viewer)(settings)
    except SkylaneError as error:
        _reply(error=str(error))
        sys.exit(1)
    _reply(address=viewer.address, note=viewer.note)
    inbox, pace = Inbox(), ViewPace(settings.limit_bytes_per_s)
    threading.Thread(target=inbox.read, args=(sys.stdin.buffer,), name="inbox", daemon=True).start()
    try:
        while not inbox.has_ended:
            pace.wait()
            viewer.check()
            messages = inbox.take(_CHECK_S)
            size = show(viewer, messages, settings, pace.reduction)
            pace.sent(size, sum(isinstance(message, ViewedFrame) for message in messages))
        show(viewer, inbox.take(0.0), settings, pace.reduction)
    except SkylaneError as error:
        sys.exit(f"{error}")
    finally:
        viewer.close()


def _reply(**fields: str) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201  To the vehicle node.


if __name__ == "__main__":
    main()
