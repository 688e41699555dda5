"""Replay: when each frame is due, and which of those that are due is taken."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from edge.ledger import Journey, Ledger
from shared import clock
from shared.errors import SkylaneError
from shared.frames import Frame, FrameSource, UnreadableFrame

_LONGEST_WAIT_S = 3600.0  # A gap in a damaged bag may be longer than the system's clock can wait at once.


class Pace(StrEnum):
    """What decides when a frame is due."""

    OPEN_LOOP = "open_loop"  # The source's own pace: newest wins, what the window cannot take is dropped.
    CLOSED_LOOP = "closed_loop"  # The window: a frame is due when a place is free, and every frame is sent.
    LIVE = "live"  # The camera: a frame is due when it was grabbed; newest wins.


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a source is replayed."""

    pace: Pace = Pace.OPEN_LOOP
    rate: float = 1.0
    loop: bool = False
    delay_s: float = 0.0
    read_ahead: int = 16
    frames: int | None = None  # Stop after so many.


class ReadAhead:
    """Reads a source in its own thread into a bounded queue, so that reading is never part of a frame's latency."""

    def __init__(self, source: FrameSource, schedule: Schedule, stop: threading.Event) -> None:
        self._source = source
        self._loop = schedule.loop
        self._frames = schedule.frames
        self._queue: queue.Queue[Frame | UnreadableFrame | None] = queue.Queue(schedule.read_ahead)
        self._stop = stop
        self.fault: SkylaneError | None = None  # Why the source ended early; what was read before it is played.

    def run(self) -> None:
        """Read until the end or until stopped; the body of the reading thread."""
        try:
            for frame in islice(self._looped(), self._frames):
                if not self._put(frame):
                    return
        except SkylaneError as error:
            self.fault = error
        finally:
            self._put(None)

    def __iter__(self) -> Iterator[Frame | UnreadableFrame]:
        """Yield what was read, in order."""
        while not self._stop.is_set():
            try:
                frame = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            if frame is None:
                return
            yield frame

    def _put(self, frame: Frame | UnreadableFrame | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(frame, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def _looped(self) -> Iterator[Frame | UnreadableFrame]:
        """The source, again and again where it loops; index and time go on where the last round ended."""
        index_shift = time_shift = 0
        while True:
            first = last = previous = None
            for frame in self._source.frames():
                first, previous, last = first or frame, last, frame
                yield replace(frame, index=frame.index + index_shift, source_ns=frame.source_ns + time_shift)
            if not self._loop or first is None or last is None:
                return
            period = last.source_ns - previous.source_ns if previous else 0
            index_shift += last.index + 1
            time_shift += last.source_ns - first.source_ns + period


class NewestSlot:
    """Holds the newest due frame of each camera until the pipeline takes it; what it replaces is handed back."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: dict[str, tuple[Journey, Frame]] = {}
        self._wanted = False
        self._closed = False

    def put(self, journey: Journey, frame: Frame) -> Journey | None:
        """Offer a due frame; returns the journey it replaces."""
        with self._condition:
            replaced = self._waiting.pop(journey.camera, None)
            self._waiting[journey.camera] = (journey, frame)
            self._condition.notify_all()
        return replaced[0] if replaced else None

    def take(self) -> tuple[Journey, Frame] | None:
        """Wait for a frame; the one that was due first is taken. None once the slot is closed and empty."""
        with self._condition:
            self._wanted = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._waiting or self._closed)
            self._wanted = False
            if not self._waiting:
                return None
            camera = next(iter(self._waiting))
            return self._waiting.pop(camera)

    def wait_until_wanted(self, stop: threading.Event) -> bool:
        """Wait until somebody waits for a frame and none is there; False when stopped."""
        with self._condition:
            while not self._condition.wait_for(lambda: self._wanted and not self._waiting, timeout=0.2):
                if stop.is_set() or self._closed:
                    return False
        return True

    def close(self) -> None:
        """No more frames will come."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def drain(self) -> list[Journey]:
        """Take out all that waits, when nobody will take it any more."""
        with self._condition:
            waiting = [journey for journey, _ in self._waiting.values()]
            self._waiting.clear()
        return waiting


class Pacer:
    """Puts each frame into the slot when it is due."""

    def __init__(
        self, frames: ReadAhead, slot: NewestSlot, ledger: Ledger, schedule: Schedule, stop: threading.Event
    ) -> None:
        self._frames = frames
        self._slot = slot
        self._ledger = ledger
        self._schedule = schedule
        self._stop = stop
        self._due = {
            Pace.OPEN_LOOP: self._due_by_source,
            Pace.CLOSED_LOOP: self._due_by_window,
            Pace.LIVE: self._due_by_camera,
        }[schedule.pace]
        self._origin: Callable[[int], int] | None = None

    def run(self) -> None:
        """Pace until the source ends; the body of the pacing thread."""
        try:
            if self._schedule.delay_s:
                self._stop.wait(self._schedule.delay_s)
            for frame in self._frames:
                due_ns = self._due(frame)
                if due_ns is None:
                    return
                self._offer(frame, due_ns)
        finally:
            self._slot.close()

    def _offer(self, frame: Frame | UnreadableFrame, due_ns: int) -> None:
        journey = self._ledger.begin(frame, due_ns)
        if isinstance(frame, UnreadableFrame):
            self._ledger.drop(journey, f"undecodable: {frame.reason}")
            return
        replaced = self._slot.put(journey, frame)
        if replaced:
            self._ledger.drop(replaced, "window")

    def _due_by_source(self, frame: Frame | UnreadableFrame) -> int | None:
        if self._origin is None:
            start_ns, first_ns, rate = clock.now_ns(), frame.source_ns, self._schedule.rate
            self._origin = lambda source_ns: start_ns + round((source_ns - first_ns) / rate)
        due_ns = self._origin(frame.source_ns)
        while (wait_ns := due_ns - clock.now_ns()) > 0:
            if self._stop.wait(min(wait_ns / 1e9, _LONGEST_WAIT_S)):
                return None
        return due_ns

    def _due_by_window(self, frame: Frame | UnreadableFrame) -> int | None:
        if isinstance(frame, Frame) and not self._slot.wait_until_wanted(self._stop):
            return None
        return clock.now_ns()

    def _due_by_camera(self, frame: Frame | UnreadableFrame) -> int | None:
        return frame.source_ns
