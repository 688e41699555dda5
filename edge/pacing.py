"""Pacing: reads frames ahead and makes each one due at its time; due frames wait in a bounded queue.

The user may pause the time of the frames, step through them and change its speed.
"""

import queue
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

from edge.config import Arrivals, EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.sources.source import FrameSource
from shared import clock
from shared.clock import LONGEST_PAUSE_NS, format_span
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame
from shared.logs import get_logger


def uniform_ns(rate_hz: float) -> Iterator[int]:
    """Yields due times at a constant rate, in nanoseconds from the first one, without end."""
    return (round(number * 1e9 / rate_hz) for number in count())


def poisson_ns(rate_hz: float, seed: int) -> Iterator[int]:
    """Yields due times of a Poisson process, in nanoseconds from the first one, without end.

    The gaps are exponential with mean 1 / rate. A seed always gives the same times.
    """
    generator = random.Random(seed)
    at_s = 0.0
    while True:
        yield round(at_s * 1e9)
        at_s += generator.expovariate(rate_hz)


_SHORTENED_PAUSE_NS = 10**9  # Replaces a pause longer than LONGEST_PAUSE_NS.
_LONG_WAIT_NS = 10 * 10**9  # A longer wait for a frame is logged before it begins.
_NAMED_PAUSES = 5  # Number of shortened pauses that are named; others are only counted.
_REMEDY = "--start-offset skips it, --closed-loop and --arrivals uniform ignore recorded times"
_STOP_POLL_S = 0.2
_STEP_OF_SPEED = 2.0
_SLOWEST, _FASTEST = 1 / 64, 64.0

_LOG = get_logger("edge")


class FrameQueue:
    """A bounded queue per camera; a new frame replaces the oldest one of its camera when the queue is full."""

    def __init__(self, depth: int = 1) -> None:
        """`depth`: number of frames per camera that may wait."""
        self._depth = depth
        self._condition = threading.Condition()
        self._waiting: dict[str, deque[tuple[FrameRecord, Frame]]] = {}  # Has no empty queues.
        self._wanted = False
        self._closed = False

    def put(self, record: FrameRecord, frame: Frame) -> FrameRecord | None:
        """Adds a frame; returns the record of the frame that it replaces, if any."""
        with self._condition:
            frames = self._waiting.setdefault(record.row.camera, deque())
            oldest = frames.popleft()[0] if len(frames) == self._depth else None
            frames.append((record, frame))
            self._condition.notify_all()
        return oldest

    def take(self) -> tuple[FrameRecord, Frame] | None:
        """Waits for a frame and returns the one that was due first; None once the queue is closed and empty."""
        with self._condition:
            self._wanted = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._waiting or self._closed)
            self._wanted = False
            if not self._waiting:
                return None
            camera = min(self._waiting, key=lambda name: self._waiting[name][0][0].id.sequence)
            taken = self._waiting[camera].popleft()
            if not self._waiting[camera]:
                del self._waiting[camera]
            return taken

    def wait_until_wanted(self, stop: threading.Event) -> bool:
        """Waits until `take` waits and the queue is empty; returns False when stopped."""
        with self._condition:
            while not self._condition.wait_for(lambda: self._wanted and not self._waiting, timeout=0.2):
                if stop.is_set() or self._closed:
                    return False
        return True

    def close(self) -> None:
        """Ends the queue: `take` returns None after the last frame."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def drain(self) -> list[FrameRecord]:
        """Removes all waiting frames and returns their records."""
        with self._condition:
            waiting = [record for frames in self._waiting.values() for record, _ in frames]
            self._waiting.clear()
        return waiting


class ReadAhead:
    """Reads a source in its own thread into a bounded queue, so that frames are late only if the source is too slow."""

    def __init__(self, source: FrameSource, config: EdgeConfig, stop: threading.Event) -> None:
        self._source = source
        self._loop = config.loop
        self._frames = config.frames
        self._queue: queue.Queue[Frame | UnreadableFrame | None] = queue.Queue(config.read_ahead_queue_size)
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


class Timeline:
    """Maps the offsets of a schedule to due times. One thread waits; other threads pause it and change its speed.

    Without a pause or a change of speed, an offset is due at the start plus the offset, however late the waiting
    thread is. A pause moves all later due times; no frame's latency contains it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The offset `_offset_ns` is due at `_since_ns`; later offsets follow at `_speed`.
        self._since_ns = 0
        self._offset_ns = 0.0
        self._speed = 1.0
        self._paused_ns: int | None = None  # Start of the current pause; None while not paused.
        self._steps = 0  # Number of frames to play during a pause.
        self._pauses: list[int] = []
        self._speeds: list[float] = []

    @property
    def is_paused(self) -> bool:
        """True while frames become due by `step` only."""
        return self._paused_ns is not None

    @property
    def speed(self) -> float:
        """The speed relative to the schedule."""
        return self._speed

    @property
    def notes(self) -> Sequence[str]:
        """Notes on pauses and changes of speed, for the manifest of the run."""
        notes = []
        with self._changed:
            lasting = [] if self._paused_ns is None else [clock.now_ns() - self._paused_ns]
            pauses = [*self._pauses, *lasting]
        if pauses:
            total_s = sum(pauses) / 1e9
            times = "once" if len(pauses) == 1 else f"{len(pauses)} times"
            notes.append(f"the user paused {times}, {total_s:.1f} s in all")
        if self._speeds:
            notes.append(f"the user changed the speed: {', '.join(f'×{speed:g}' for speed in self._speeds)}")
        return notes

    def toggle_pause(self) -> None:
        """Pauses, or ends the pause."""
        with self._changed:
            now_ns = clock.now_ns()
            if self._paused_ns is None:
                self._anchor(now_ns)
                self._paused_ns = now_ns
            else:
                self._pauses.append(now_ns - self._paused_ns)
                self._since_ns, self._paused_ns, self._steps = now_ns, None, 0
            self._changed.notify_all()

    def step(self) -> None:
        """Makes the next frame due now; only during a pause."""
        with self._changed:
            self._steps += self.is_paused
            self._changed.notify_all()

    def faster(self) -> None:
        """Doubles the speed."""
        self._set_speed(min(_FASTEST, self._speed * _STEP_OF_SPEED))

    def slower(self) -> None:
        """Halves the speed."""
        self._set_speed(max(_SLOWEST, self._speed / _STEP_OF_SPEED))

    def wait_until(self, offset_ns: int, stop: threading.Event) -> int | None:
        """Waits until an offset is due and returns its due time; None when stopped. The first offset starts the time."""
        with self._changed:
            if not self._since_ns:
                self._since_ns, self._offset_ns = clock.now_ns(), offset_ns
            while not stop.is_set():
                now_ns = clock.now_ns()
                if self._steps:
                    self._steps -= 1
                    self._since_ns, self._offset_ns = now_ns, offset_ns
                    return now_ns
                due_ns = self._since_ns + round((offset_ns - self._offset_ns) / self._speed)
                if not self.is_paused and due_ns <= now_ns:
                    return due_ns
                wait_s = _STOP_POLL_S if self.is_paused else min(_STOP_POLL_S, (due_ns - now_ns) / 1e9)
                self._changed.wait(wait_s)
        return None

    def wait_while_paused(self, stop: threading.Event) -> None:
        """Waits until the pause ends or `step` was called; for frames without a schedule."""
        with self._changed:
            while self.is_paused and not self._steps and not stop.is_set():
                self._changed.wait(_STOP_POLL_S)
            self._steps = max(0, self._steps - 1)

    def _set_speed(self, speed: float) -> None:
        with self._changed:
            if speed == self._speed:
                return
            if not self.is_paused:
                self._anchor(clock.now_ns())
            self._speed = speed
            self._speeds.append(speed)
            self._changed.notify_all()

    def _anchor(self, now_ns: int) -> None:
        """Sets the point from which due times are computed to `now_ns`."""
        if self._since_ns:
            self._offset_ns += (now_ns - self._since_ns) * self._speed
            self._since_ns = now_ns


@dataclass(frozen=True, slots=True)
class Pacer:
    """Puts each frame into the queue when it is due.

    In an open loop, a schedule makes frames due; one that finds the queue full replaces the oldest of its camera there, which
    is dropped. In a closed loop, no frame is dropped for lack of room: it is due when the window has room. Frames of a
    burst are due when all earlier frames have ended, and a frame of a camera when it was grabbed.

    The due time comes from the schedule, not from the moment at which the pacer gets to it: a delay of the pacer counts
    as latency of the frame. The timeline can pause the playback, except that of a camera.
    """

    frames: Iterable[Frame | UnreadableFrame]
    queue: FrameQueue
    ledger: Ledger
    config: EdgeConfig
    stop: threading.Event
    is_live: bool = False  # True if the source is a camera.
    on_due: Callable[[FrameRecord, Frame | UnreadableFrame], None] | None = None  # Called with every frame.
    overflow_reason: Callable[[], str] = lambda: "window"  # Returns why a newer frame replaces a queued one.
    timeline: Timeline = field(default_factory=Timeline)
    shortened: Counter[str] = field(default_factory=Counter)  # Notes on pauses that were not waited for in full.

    def run(self) -> None:
        """Paces until the source ends or until stopped; the body of a thread."""
        try:
            if self.config.delay_s:
                self.stop.wait(self.config.delay_s)
            if self.is_live:
                self._run_live()
            elif not self.config.closed_loop:
                self._run_open_loop()
            elif self.config.burst > 1:
                self._run_bursts()
            else:
                self._run_closed_loop()
        finally:
            self.queue.close()

    def _run_open_loop(self) -> None:
        for frame, offset_ns in self._schedule():
            due_ns = self.timeline.wait_until(offset_ns, self.stop)
            if due_ns is None:
                return
            self._offer(frame, due_ns)

    def _schedule(self) -> Iterator[tuple[Frame | UnreadableFrame, int]]:
        """Yields each frame and its due time in nanoseconds after the first one."""
        config = self.config
        match config.arrivals:
            case Arrivals.SOURCE:
                yield from self._recorded()
            case Arrivals.UNIFORM:
                yield from zip(self.frames, uniform_ns(config.arrival_rate_hz or 1.0), strict=False)
            case Arrivals.POISSON:
                yield from zip(self.frames, poisson_ns(config.arrival_rate_hz or 1.0, config.seed or 0), strict=False)

    def _recorded(self) -> Iterator[tuple[Frame | UnreadableFrame, int]]:
        """Yields each frame and its due time by the recording times; a pause of more than half an hour is shortened."""
        rate = self.config.rate
        first_ns = latest_ns = None
        longest_ns = 0.0  # Only waits twice as long as the last one are logged.
        for frame in self.frames:
            if first_ns is None or latest_ns is None:
                first_ns = latest_ns = frame.source_ns
            pause_ns, latest_ns = frame.source_ns - latest_ns, frame.source_ns
            if pause_ns / rate > _LONG_WAIT_NS:
                about = {
                    "pause": format_span(pause_ns),
                    "frame": frame.index,
                    "camera": frame.camera,
                    "remedy": _REMEDY,
                }
                if min(pause_ns, pause_ns / rate) > LONGEST_PAUSE_NS:
                    first_ns += pause_ns - _SHORTENED_PAUSE_NS
                    self._note_shortened(about)
                elif pause_ns / rate > longest_ns:
                    longest_ns = 2 * pause_ns / rate
                    _LOG.info("waiting for a pause of the recording", wait_s=round(pause_ns / rate / 1e9, 1), **about)
            yield frame, round((frame.source_ns - first_ns) / rate)

    def _note_shortened(self, about: Mapping[str, Any]) -> None:
        if len(self.shortened) < _NAMED_PAUSES:
            _LOG.warning("clock jump or long pause played as 1 s", **about)
            note = "the pause of {pause} before frame {frame} of {camera} was played as 1 s".format_map(about)
        else:
            note = "further pauses were played as 1 s"
        self.shortened[note] += 1

    def _run_closed_loop(self) -> None:
        for frame in self.frames:
            self.timeline.wait_while_paused(self.stop)
            if not self._is_wanted(frame):
                return
            self._offer(frame, clock.now_ns())

    def _run_bursts(self) -> None:
        frames = iter(self.frames)
        size = self.config.burst
        # Up to the read-ahead limit, a burst is read before it is due: reading is no part of its latency.
        while burst := list(islice(frames, min(size, self.config.read_ahead_queue_size))):
            self.timeline.wait_while_paused(self.stop)
            if not self._wait_until_all_closed():
                return
            due_ns = clock.now_ns()
            for frame in chain(burst, islice(frames, size - len(burst))):
                if not self._is_wanted(frame):
                    return
                self._offer(frame, due_ns)

    def _run_live(self) -> None:
        for frame in self.frames:
            self._offer(frame, frame.source_ns)

    def _offer(self, frame: Frame | UnreadableFrame, due_ns: int) -> None:
        record = self.ledger.begin(frame, due_ns)
        if isinstance(frame, UnreadableFrame):
            self.ledger.drop(record, f"undecodable: {frame.reason}")
        elif (replaced := self.queue.put(record, frame)) is not None:
            self.ledger.drop(replaced, self.overflow_reason())
        if self.on_due is not None:
            self.on_due(record, frame)

    def _is_wanted(self, frame: Frame | UnreadableFrame) -> bool:
        """Waits until the pipeline can take a frame, unless it is unreadable; returns False when stopped."""
        return isinstance(frame, UnreadableFrame) or self.queue.wait_until_wanted(self.stop)

    def _wait_until_all_closed(self) -> bool:
        """Waits until every frame that was due has its row; returns False when stopped."""
        while not self.ledger.wait_until_all_closed(_STOP_POLL_S):
            if self.stop.is_set():
                return False
        return True
