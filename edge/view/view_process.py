"""The process of a live view: asks for an update when it can show one, so that only the newest frame waits.

Run as a module; it writes lines of JSON: first its address or an error, then one line to ask for each update.
"""

import json
import os
import pickle
import sys
import time
from operator import itemgetter
from typing import IO, Any

import psutil

from edge.sinks.scene import Reduction
from edge.view.viewer import VIEWERS, Viewer, ViewSettings, ViewUpdate
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from shared.registry import load
from shared.threads import lower_priority

# Levels of reduction: from unchanged to barely recognizable.
_REDUCTIONS = (
    Reduction(),
    Reduction(1.0, 60),
    Reduction(0.75, 55),
    Reduction(0.5, 55),
    Reduction(0.5, 35),
    Reduction(0.35, 35),
    Reduction(0.25, 30),
)
_UPDATE_S = 0.2  # With a rate limit, pictures are reduced until an update takes at most this time to send.
_BUSY_SHARE, _FREE_SHARE = 0.02, 0.5  # Smallest and largest share of a core for this process, on average,
_BURST_S = 0.3  # over this time: a frame that comes early does not wait.
_IDLE_SHARE = 0.5  # Share of the machine's idle cores that this process may use,
_SPARED_CORES = 0.25  # after subtracting these, because a busy machine has idle time too.
_IDLE_S = 1.0  # Time over which idle time is averaged.
_GROWTH = 2.5  # The next larger pictures have at most this many times the bytes.


class ViewPace:
    """Limits the processor time of this process and the bytes that it sends, by waiting and by reducing pictures."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = 0 if bytes_per_s is None else len(_REDUCTIONS) - 1
        self._worked_s = time.process_time()
        self._paid_s = time.monotonic()  # Time until which the work so far uses up the share.
        self._share = _FREE_SHARE
        self._idle_s, self._looked_s = psutil.cpu_times().idle, time.monotonic()

    @property
    def reduction(self) -> Reduction:
        """The reduction of the next pictures."""
        return _REDUCTIONS[self._level]

    def wait(self, size: int, *, has_pictures: bool) -> None:
        """Waits for the time that `size` sent bytes take, and chooses the reduction of the next pictures accordingly.

        Waits longer if this process would exceed its average share of a core, which is larger on an idle machine.
        """
        worked_s, now_s = time.process_time(), time.monotonic()
        if now_s - self._looked_s >= _IDLE_S:
            idle_s = psutil.cpu_times().idle
            idle_cores = (idle_s - self._idle_s) / (now_s - self._looked_s)
            self._share = min(max(_IDLE_SHARE * (idle_cores - _SPARED_CORES), _BUSY_SHARE), _FREE_SHARE)
            self._idle_s, self._looked_s = idle_s, now_s
        self._paid_s = max(self._paid_s, now_s - _BURST_S) + (worked_s - self._worked_s) / self._share
        self._worked_s = worked_s
        rest_s = self._paid_s - now_s
        if self._bytes_per_s is not None:
            rest_s = max(rest_s, size / self._bytes_per_s)
            allowed = self._bytes_per_s * _UPDATE_S
            if has_pictures and size > allowed:
                self._level = min(self._level + 1, len(_REDUCTIONS) - 1)
            elif has_pictures and size * _GROWTH < allowed:
                self._level = max(self._level - 1, 0)
        time.sleep(max(0.0, rest_s))


def show(viewer: Viewer, update: ViewUpdate, reduction: Reduction) -> int:
    """Shows an update; returns the approximate number of bytes that a viewer receives for it."""
    size = sum(
        viewer.scene.show(frame, time_ns, reduction) for time_ns, frame in sorted(update.frames, key=itemgetter(0))
    )
    size += sum(viewer.scene.measure(row, update.time_ns) for row in update.rows)
    return size + viewer.scene.count(update.outcomes, update.in_flight, update.time_ns)


def receive(pipe: IO[bytes]) -> Any:
    """Waits for a message of the vehicle node, which started this process; returns None at the end of the pipe."""
    try:
        return pickle.load(pipe)  # noqa: S301  Only the parent process can write to it.
    except (EOFError, pickle.UnpicklingError):  # The pipe ended, perhaps within a message of a killed vehicle node.
        return None


def main() -> None:
    """Serves a viewer until the end of standard input."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Libraries may print; that must not mix with the replies.
    lower_priority()
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # Measured work runs at once, not after a slice.
    cv2.setNumThreads(1)
    settings: ViewSettings = receive(sys.stdin.buffer)
    try:
        viewer: Viewer = load("viewer", VIEWERS, settings.viewer)(settings)
    except SkylaneError as error:
        _reply(replies, error=str(error))
        sys.exit(1)
    _reply(replies, address=viewer.address, note=viewer.note)
    pace = ViewPace(settings.bytes_per_s)
    try:
        while update := receive(sys.stdin.buffer):
            size = show(viewer, update, pace.reduction)
            viewer.check()
            pace.wait(size, has_pictures=bool(update.frames))
            _reply(replies)
    except SkylaneError as error:
        sys.exit(str(error))
    except BrokenPipeError:  # The vehicle node was killed.
        pass
    finally:
        viewer.close()


def _reply(replies: IO[str], **fields: str) -> None:
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
