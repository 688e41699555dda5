"""Replay of a source: reads frames in advance and queues each one when it is due."""

import math
import queue
import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, count, islice

from edge.pacing.frame_queue import FrameQueue
from edge.reliability.ledger import Ledger
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, FrameSource, UnreadableFrame

_LONGEST_WAIT_S = 3600.0  # A damaged bag may have gaps that are too long for one wait.
_STOP_POLL_S = 0.2


class Pace(StrEnum):
    """Rule that decides when a frame is due."""

    OPEN_LOOP = "open_loop"  # A schedule. Frames that do not fit into the window are dropped.
    CLOSED_LOOP = "closed_loop"  # The answers: a frame is due when the window has room, and every frame is sent.
    LIVE = "live"  # The camera: a frame is due when it was grabbed, and the newest one wins.


class Arrivals(StrEnum):
    """The schedule of an open loop."""

    SOURCE = "source"  # The times at which the source recorded the frames.
    UNIFORM = "uniform"  # A constant rate, as from one camera.
    POISSON = "poisson"  # A Poisson process, as from many independent vehicles.


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Settings of a replay."""

    pace: Pace = Pace.OPEN_LOOP
    arrivals: Arrivals = Arrivals.SOURCE  # Open loop only.
    rate: float = 1.0  # Speed relative to the source.
    arrival_rate_hz: float = 1.0  # Rate of uniform and Poisson arrivals, all cameras together.
    seed: int = 0  # Seed of Poisson arrivals.
    burst: int = 1  # Closed loop: number of frames that are due together.
    loop: bool = False
    delay_s: float = 0.0
    read_ahead: int = 16  # Number of frames read in advance.
    frames: int | None = None  # Maximum number of frames.


def uniform_ns(rate_hz: float) -> Iterator[int]:
    """Yields due times at a constant rate, in nanoseconds from the first one, without end."""
    return (round(number * 1e9 / rate_hz) for number in count())


def poisson_ns(rate_hz: float, seed: int) -> Iterator[int]:
    """Yields due times of a Poisson process, in nanoseconds from the first one, without end.

    The gaps are exponential with mean 1 / rate: -ln(1 - U) / rate with U uniform in [0, 1), by inversion of the
    distribution (Knuth, The Art of Computer Programming, volume 2, section 3.4.1 D). A seed always gives the same times.
    """
    generator = random.Random(seed)
    at_s = 0.0
    while True:
        yield round(at_s * 1e9)
        at_s -= math.log(1.0 - generator.random()) / rate_hz


class ReadAhead:
    """Reads a source in its own thread into a bounded queue, so that no frame's latency includes reading."""

    def __init__(self, source: FrameSource, settings: ReplaySettings, stop: threading.Event) -> None:
        self._source = source
        self._loop = settings.loop
        self._frames = settings.frames
        self._queue: queue.Queue[Frame | UnreadableFrame | None] = queue.Queue(settings.read_ahead)
        self._stop = stop
        self.fault: SkylaneError | None = None  # Error that ended the source early; earlier frames are still played.

    def run(self) -> None:
        """Reads until the end or until stopped; the body of a thread."""
        try:
            for frame in islice(self._looped(), self._frames):
                if not self._put(frame):
                    return
        except SkylaneError as error:
            self.fault = error
        finally:
            self._put(None)

    def __iter__(self) -> Iterator[Frame | UnreadableFrame]:
        """Yields the frames in order."""
        while not self._stop.is_set():
            try:
                frame = self._queue.get(timeout=_STOP_POLL_S)
            except queue.Empty:
                continue
            if frame is None:
                return
            yield frame

    def _put(self, frame: Frame | UnreadableFrame | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(frame, timeout=_STOP_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def _looped(self) -> Iterator[Frame | UnreadableFrame]:
        """Yields the frames of the source; in a loop, index and time continue from one round to the next."""
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
    """Puts each frame into the queue when it is due.

    The due time comes from the schedule, not from the moment at which the pacer gets to it: a delay of the pacer counts
    as latency of the frame.
    """

    def __init__(
        self,
        frames: Iterable[Frame | UnreadableFrame],
        frame_queue: FrameQueue,
        ledger: Ledger,
        settings: ReplaySettings,
        stop: threading.Event,
    ) -> None:
        self._frames = frames
        self._queue = frame_queue
        self._ledger = ledger
        self._settings = settings
        self._stop = stop

    def run(self) -> None:
        """Paces until the source ends or until stopped; the body of a thread."""
        try:
            if self._settings.delay_s:
                self._stop.wait(self._settings.delay_s)
            match self._settings.pace:
                case Pace.OPEN_LOOP:
                    self._run_open_loop()
                case Pace.CLOSED_LOOP if self._settings.burst > 1:
                    self._run_bursts()
                case Pace.CLOSED_LOOP:
                    self._run_closed_loop()
                case Pace.LIVE:
                    self._run_live()
        finally:
            self._queue.close()

    def _run_open_loop(self) -> None:
        start_ns = 0
        for frame, offset_ns in self._schedule():
            start_ns = start_ns or clock.now_ns()
            if not self._wait_until(start_ns + offset_ns):
                return
            self._offer(frame, start_ns + offset_ns)

    def _schedule(self) -> Iterator[tuple[Frame | UnreadableFrame, int]]:
        """Yields each frame and its due time in nanoseconds after the first one."""
        settings = self._settings
        match settings.arrivals:
            case Arrivals.SOURCE:
                first_ns = None
                for frame in self._frames:
                    first_ns = frame.source_ns if first_ns is None else first_ns
                    yield frame, round((frame.source_ns - first_ns) / settings.rate)
            case Arrivals.UNIFORM:
                yield from zip(self._frames, uniform_ns(settings.arrival_rate_hz), strict=False)
            case Arrivals.POISSON:
                yield from zip(self._frames, poisson_ns(settings.arrival_rate_hz, settings.seed), strict=False)

    def _run_closed_loop(self) -> None:
        for frame in self._frames:
            if not self._is_wanted(frame):
                return
            self._offer(frame, clock.now_ns())

    def _run_bursts(self) -> None:
        frames = iter(self._frames)
        size = self._settings.burst
        # Up to the read-ahead limit, a burst is read before it is due: reading is no part of its latency.
        while burst := list(islice(frames, min(size, self._settings.read_ahead))):
            if not self._wait_until_all_closed():
                return
            due_ns = clock.now_ns()
            for frame in chain(burst, islice(frames, size - len(burst))):
                if not self._is_wanted(frame):
                    return
                self._offer(frame, due_ns)

    def _run_live(self) -> None:
        for frame in self._frames:
            self._offer(frame, frame.source_ns)

    def _offer(self, frame: Frame | UnreadableFrame, due_ns: int) -> None:
        record = self._ledger.begin(frame, due_ns)
        if isinstance(frame, UnreadableFrame):
            self._ledger.drop(record, f"undecodable: {frame.reason}")
            return
        replaced = self._queue.put(record, frame)
        if replaced:
            self._ledger.drop(replaced, "window")

    def _wait_until(self, due_ns: int) -> bool:
        """Waits until a time; returns False when stopped."""
        while (wait_ns := due_ns - clock.now_ns()) > 0:
            if self._stop.wait(min(wait_ns / 1e9, _LONGEST_WAIT_S)):
                return False
        return True

    def _is_wanted(self, frame: Frame | UnreadableFrame) -> bool:
        """Waits until the pipeline can take a frame, unless it is unreadable; returns False when stopped."""
        return isinstance(frame, UnreadableFrame) or self._queue.wait_until_wanted(self._stop)

    def _wait_until_all_closed(self) -> bool:
        """Waits until every frame that was due has its row; returns False when stopped."""
        while not self._ledger.wait_until_all_closed(_STOP_POLL_S):
            if self._stop.is_set():
                return False
        return True
