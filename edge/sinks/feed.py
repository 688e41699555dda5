"""Groups of sinks, the thread that feeds them with results, and the check that they support the task of a model."""

import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from edge.frame_record import FrameRecord
from edge.ledger import PendingResults
from edge.pipeline import rgb_input
from edge.sinks.sink import SINKS, FrameResult, Origin, Sink, SinkError
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.task import TASKS, task_named
from shared.threads import BoundedQueue, lower_priority

_LOG = get_logger("edge")
_BACKLOG, _RAW_BACKLOG = 64, 8  # Frames; the raw outputs of one may take a hundred megabytes.
_MAX_HELD, _RAW_MAX_HELD = 64, 16  # Frames held back so that a delayed result still gets its place.


def check_sinks(names: Sequence[str], card: ModelCard) -> None:
    """Checks that sinks support the task of a model.

    Raises:
        SinkError: a sink does not; the message names those that do.
    """
    for name in names:
        if not SINKS[name].holds(task_named(card.task)):
            held = " or ".join(task for task in TASKS if SINKS[name].holds(task_named(task)))
            others = ", ".join(other for other, entry in SINKS.items() if entry.holds(task_named(card.task)))
            raise SinkError(f"sink {name} holds {held}, model {card.name} answers {card.task}: use {others}")


def backlog(card: ModelCard) -> int:
    """Returns the number of frames that may wait for the sinks."""
    return _BACKLOG if task_named(card.task).heads else _RAW_BACKLOG


@dataclass(frozen=True, slots=True)
class MissingOutput:
    """A frame for which the vehicle had no output when it was due."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    reason: str


@runtime_checkable
class MissingOutputSink(Sink, Protocol):
    """A sink that also records the frames without an output."""

    def write_missing(self, missing: MissingOutput) -> None:
        """Writes one frame without an output."""


class SinkGroup:
    """Sinks that get the same frames. A sink that fails is removed, and the others go on."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.written = 0  # Number of writes; it grows as long as the sinks make progress.
        self.faults: list[SkylaneError] = []
        self._sinks = list(sinks)

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def needs_order(self) -> bool:
        """Whether a sink needs the frames in order."""
        return any(sink.in_order for sink in self._sinks)

    def write(self, frame: FrameResult, *, in_order: bool) -> None:
        """Writes a frame to the sinks that need the frames in order, or to the others."""
        for sink in [sink for sink in self._sinks if sink.in_order is in_order]:
            self._run_guarded(sink, partial(sink.write, frame))
        self.written += 1

    def write_missing(self, missing: MissingOutput) -> None:
        """Writes a frame without an output to the sinks that record such frames."""
        for sink in [sink for sink in self._sinks if isinstance(sink, MissingOutputSink)]:
            self._run_guarded(sink, partial(sink.write_missing, missing))
        self.written += 1

    def close(self) -> None:
        """Completes the files of all sinks."""
        for sink in list(self._sinks):
            self._run_guarded(sink, sink.close)

    def wait_until_written(self, writing: threading.Thread, stall_s: float) -> None:
        """Waits until `writing`, the thread that writes, has ended or has made no progress for `stall_s` seconds."""
        written = -1
        while writing.is_alive() and self.written != written:
            written = self.written
            writing.join(stall_s)

    def _run_guarded(self, sink: Sink, step: Callable[[], None]) -> None:
        try:
            step()
        except SkylaneError as error:
            _LOG.error("sink removed", sink=type(sink).__name__, reason=str(error))
            self.faults.append(error)
            self._sinks.remove(sink)
            with suppress(SkylaneError):  # The first error is reported already.
                sink.close()


class SinkFeed:
    """Feeds the sinks from a low-priority thread, after everything that is measured.

    A sink that needs the frames in order gets a frame when no earlier one can get a result any more, but no later than
    when `max_held` frames wait; other sinks get it at once.
    """

    def __init__(self, sinks: Sequence[Sink], card: ModelCard, pending: PendingResults) -> None:
        """`pending`: the frames that may still get a result; the feed removes those that it gets."""
        self.max_held = _MAX_HELD if task_named(card.task).heads else _RAW_MAX_HELD
        self.too_late = 0  # Results that arrived too late for sinks that need them in order.
        self.sinks = SinkGroup(sinks)
        self._card = card
        self._pending = pending
        # With each frame, the lowest number of a frame that could still get a result before it was queued.
        self._handover: BoundedQueue[tuple[FrameResult, int]] = BoundedQueue(backlog(card))

    def put(self, record: FrameRecord, answer: ModelResult, origin: Origin = Origin.WORKER) -> None:
        """Queues a frame with its result; waits if the sinks are far behind, so that no result is lost."""
        if self.sinks and record.image is not None and record.geometry is not None:
            frame = self._frame_result(record, answer, origin)
            self._handover.put((frame, self._pending.first()))
        self._pending.remove(record.id.sequence)

    def end(self) -> None:
        """Ends the feed after the queued frames."""
        self._handover.close()

    def run(self) -> None:
        """Writes until the end; the body of a thread."""
        lower_priority()
        waiting: list[tuple[int, FrameResult]] = []
        last_sequence = -1
        with self._handover.reader() as get:
            while (queued := get()) is not None:
                frame, complete_below = queued
                self.sinks.write(frame, in_order=False)
                if not self.sinks.needs_order:
                    continue
                if frame.sequence <= last_sequence:
                    self.too_late += 1
                    continue
                heapq.heappush(waiting, (frame.sequence, frame))
                while waiting and (waiting[0][0] < complete_below or len(waiting) > self.max_held):
                    last_sequence, first = heapq.heappop(waiting)
                    self.sinks.write(first, in_order=True)
            while waiting:
                self.sinks.write(heapq.heappop(waiting)[1], in_order=True)
            self.sinks.close()

    def _frame_result(self, record: FrameRecord, answer: ModelResult, origin: Origin) -> FrameResult:
        assert record.image is not None
        assert record.geometry is not None
        return FrameResult(
            camera=record.camera,
            sequence=record.id.sequence,
            frame_index=record.frame_index,
            stamp_ns=record.frame_stamp_ns,
            source_ns=record.source_ns,
            image=rgb_input(record.image, record.geometry, self._card.layout),
            result=answer.result,
            geometry=record.geometry,
            model_version=answer.model_version,
            engine=answer.engine,
            model=answer.model,
            origin=origin,
            reused_sequence=record.reused_sequence,
        )
