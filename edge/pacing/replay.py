"""Replay: a source is read ahead, and each of its frames falls due."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, islice

from edge.pacing.arrivals import Arrivals, poisson_ns, uniform_ns
from edge.pacing.frame_queue import FrameQueue
from edge.reliability.ledger import Ledger
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, FrameSource, UnreadableFrame

_LONGEST_WAIT_S = 3600.0  # A gap in a damaged bag may be longer than the system's clock can wait at once.
_LOOK_S = 0.2  # How often a wait looks whether it was stopped.


class Pace(StrEnum):
    """What decides when a frame is due."""

    OPEN_LOOP = "open_loop"  # A schedule, whatever the far side does: what the window cannot take is dropped.
    CLOSED_LOOP = "closed_loop"  # The answers: a frame is due when the window has a place, and every frame is sent.
    LIVE = "live"  # The camera: a frame is due when it was grabbed; newest wins.


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a source is replayed."""

    pace: Pace = Pace.OPEN_LOOP
    arrivals: Arrivals = Arrivals.SOURCE  # Of an open loop.
    rate: float = 1.0  # Times the source's own pace.
    arrival_rate_hz: float = 1.0  # Of uniform and Poisson arrivals; all cameras together.
    seed: int = 0  # Of Poisson arrivals.
    burst: int = 1  # Closed loop: more than 1 fall due together, and the next when all of them have ended.
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
                frame = self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if frame is None:
                return
            yield frame

    def _put(self, frame: Frame | UnreadableFrame | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(frame, timeout=_LOOK_S)
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


class Pacer:
    """Puts each frame into the slot when it is due.

    A frame's due time never follows from when the pacer got round to it: what was late is late in the log.
    """

    def __init__(
        self,
        frames: Iterable[Frame | UnreadableFrame],
        slot: FrameQueue,
        ledger: Ledger,
        schedule: Schedule,
        stop: threading.Event,
    ) -> None:
        self._frames = frames
        self._slot = slot
        self._ledger = ledger
        self._schedule = schedule
        self._stop = stop

    def run(self) -> None:
        """Pace until the source ends; the body of the pacing thread."""
        try:
            if self._schedule.delay_s:
                self._stop.wait(self._schedule.delay_s)
            match self._schedule.pace:
                case Pace.OPEN_LOOP:
                    self._by_schedule()
                case Pace.CLOSED_LOOP if self._schedule.burst > 1:
                    self._by_burst()
                case Pace.CLOSED_LOOP:
                    self._by_window()
                case Pace.LIVE:
                    self._by_camera()
        finally:
            self._slot.close()

    def _by_schedule(self) -> None:
        start_ns = 0
        for frame, offset_ns in self._scheduled():
            start_ns = start_ns or clock.now_ns()
            if not self._wait_until(start_ns + offset_ns):
                return
            self._offer(frame, start_ns + offset_ns)

    def _scheduled(self) -> Iterator[tuple[Frame | UnreadableFrame, int]]:
        """Each frame and how many nanoseconds after the first it is due."""
        schedule = self._schedule
        match schedule.arrivals:
            case Arrivals.SOURCE:
                first_ns = None
                for frame in self._frames:
                    first_ns = frame.source_ns if first_ns is None else first_ns
                    yield frame, round((frame.source_ns - first_ns) / schedule.rate)
            case Arrivals.UNIFORM:
                yield from zip(self._frames, uniform_ns(schedule.arrival_rate_hz), strict=False)
            case Arrivals.POISSON:
                yield from zip(self._frames, poisson_ns(schedule.arrival_rate_hz, schedule.seed), strict=False)

    def _by_window(self) -> None:
        for frame in self._frames:
            if not self._is_wanted(frame):
                return
            self._offer(frame, clock.now_ns())

    def _by_burst(self) -> None:
        frames = iter(self._frames)
        size = self._schedule.burst
        # Read before it is due, so that reading is no part of its latency, as far as memory was granted for it.
        while burst := list(islice(frames, min(size, self._schedule.read_ahead))):
            if not self._wait_until_all_ended():
                return
            due_ns = clock.now_ns()
            for frame in chain(burst, islice(frames, size - len(burst))):
                if not self._is_wanted(frame):
                    return
                self._offer(frame, due_ns)

    def _by_camera(self) -> None:
        for frame in self._frames:
            self._offer(frame, frame.source_ns)

    def _offer(self, frame: Frame | UnreadableFrame, due_ns: int) -> None:
        journey = self._ledger.begin(frame, due_ns)
        if isinstance(frame, UnreadableFrame):
            self._ledger.drop(journey, f"undecodable: {frame.reason}")
            return
        oldest = self._slot.put(journey, frame)
        if oldest:
            self._ledger.drop(oldest, "window")

    def _wait_until(self, due_ns: int) -> bool:
        """Wait for a time to come; False when stopped."""
        while (wait_ns := due_ns - clock.now_ns()) > 0:
            if self._stop.wait(min(wait_ns / 1e9, _LONGEST_WAIT_S)):
                return False
        return True

    def _is_wanted(self, frame: Frame | UnreadableFrame) -> bool:
        """Wait until the pipeline can take a frame; False when stopped. One that cannot be read takes no place."""
        return isinstance(frame, UnreadableFrame) or self._slot.wait_until_wanted(self._stop)

    def _wait_until_all_ended(self) -> bool:
        """Wait until every frame that was due has its row; False when stopped."""
        while not self._ledger.wait_until_all_ended(_LOOK_S):
            if self._stop.is_set():
                return False
        return True
