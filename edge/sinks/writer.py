"""The thread that writes results or a presenter's outputs to sinks; checks that sinks support a model's task."""

import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, runtime_checkable

from edge.frame_record import FrameRecord
from edge.sinks.sink import SINKS, FrameResult, Origin, PresentedTick, Sink, SinkError
from shared.errors import SkylaneError
from shared.imaging.geometry import rgb_input
from shared.logs import get_logger
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.runlog.latency_log import Outcome
from shared.task import TASKS, task_named
from shared.threads import BoundedQueue, lower_priority

_LOG = get_logger("edge")
_BACKLOG, _RAW_BACKLOG = 64, 8  # Frames; the raw outputs of one may take a hundred megabytes.
_MAX_HELD, _RAW_MAX_HELD = 64, 16  # Frames held back so that a delayed result still gets its place.


def check_sinks(names: Sequence[str], card: ModelCard) -> None:
    """Checks that sinks support the task of a model.

    Raises:
        SinkError: a sink does not support it; the message names sinks that do.
    """
    for name in names:
        if not SINKS[name].holds(task_named(card.task)):
            held = " or ".join(task for task in TASKS if SINKS[name].holds(task_named(task)))
            others = ", ".join(other for other, entry in SINKS.items() if entry.holds(task_named(card.task)))
            raise SinkError(f"sink {name} holds {held}, model {card.name} answers {card.task}: use {others}")


def backlog(card: ModelCard) -> int:
    """Returns the number of frames that may wait for the sinks."""
    return _BACKLOG if task_named(card.task).heads else _RAW_BACKLOG


@runtime_checkable
class MissingOutputSink(Sink, Protocol):
    """A sink that also records the frames without an output."""

    def write_missing(self, missing: PresentedTick) -> None:
        """Writes one frame without an output."""


_ORIGINS = {
    Outcome.ANSWERED: Origin.WORKER,
    Outcome.REUSED: Origin.REUSED,
    Outcome.ANSWERED_LOCALLY: Origin.LOCAL,
}


def frame_result(record: FrameRecord, answer: ModelResult, card: ModelCard) -> FrameResult | None:
    """Returns a frame with its result; None if the frame has no prepared image."""
    if record.image is None or record.geometry is None:
        return None
    row = record.row
    return FrameResult(
        camera=row.camera,
        sequence=row.sequence,
        frame_index=row.frame_index,
        stamp_ns=row.frame_stamp_ns,
        source_ns=row.source_ns,
        image=rgb_input(record.image, record.geometry, card.layout),
        result=answer.result,
        geometry=record.geometry,
        model_version=answer.model_version,
        engine=answer.engine,
        model=answer.model,
        origin=_ORIGINS[row.outcome],
        reused_sequence=row.reused_sequence,
        camera_id=row.camera_id,
    )


class SinkWriter:
    """Writes frames to sinks in a thread with the lowest priority, after everything that is measured.

    A sink that fails is removed, and the others go on. Results and the outputs of a presenter have a writer each, so that
    slow sinks of one do not delay the other.
    """

    def __init__(self, sinks: Sequence[Sink], card: ModelCard, first_open: Callable[[], int] | None = None) -> None:
        """`first_open` returns the lowest number of a frame that may still get a result.

        With it, a sink that needs the frames in order gets a frame when no earlier one can get a result any more,
        but no later than when `max_held` frames wait. Other sinks get it at once. All sinks get outputs at once.
        """
        self.max_held = _MAX_HELD if task_named(card.task).heads else _RAW_MAX_HELD
        self.faults: list[SkylaneError] = []
        self.too_late = 0  # Results that arrived too late for sinks that need them in order.
        self.left_out = 0  # Outputs that were left out because the queue was full.
        self.written = 0  # Number of writes; it grows as long as the sinks make progress.
        self._sinks = list(sinks)
        self._card = card
        self._first_open = first_open or (lambda: 0)
        # Each entry has the lowest number of a frame that could still get a result when it was queued; None: no order.
        self._queue: BoundedQueue[tuple[FrameResult | PresentedTick, int | None]] = BoundedQueue(backlog(card))

    @property
    def needs_order(self) -> bool:
        """True if a sink needs the frames in order."""
        return any(sink.in_order for sink in self._sinks)

    def ended(self, record: FrameRecord, result: ModelResult | None) -> None:
        """Queues a frame with its result; waits if the queue is full, so that no frame is lost. See FrameListener."""
        frame = frame_result(record, result, self._card) if self._sinks and result is not None else None
        if frame is not None:
            self._queue.put((frame, self._first_open()))

    def offer(self, output: FrameResult | PresentedTick) -> None:
        """Queues an output; counts it as left out if the queue is full, because the presenter must not wait."""
        if self._sinks and not self._queue.offer((output, None)):
            self.left_out += 1

    def run(self) -> None:
        """Writes until `end` was called; the body of a thread."""
        lower_priority()
        held: list[tuple[int, FrameResult]] = []
        last_sequence = -1
        with self._queue.reader() as get:
            while (queued := get()) is not None:
                frame, complete_below = queued
                if isinstance(frame, PresentedTick):
                    self._write_missing(frame)
                    continue
                self._write(frame, in_order=False)
                if complete_below is None:
                    self._write(frame, in_order=True)
                elif self.needs_order and frame.sequence <= last_sequence:
                    self.too_late += 1
                elif self.needs_order:
                    heapq.heappush(held, (frame.sequence, frame))
                    while held and (held[0][0] < complete_below or len(held) > self.max_held):
                        last_sequence, first = heapq.heappop(held)
                        self._write(first, in_order=True)
            while held:
                self._write(heapq.heappop(held)[1], in_order=True)
            for sink in list(self._sinks):
                self._run_guarded(sink, sink.close)

    def end(self) -> None:
        """Ends `run` after the queued frames."""
        self._queue.close()

    def wait_until_written(self, writing: threading.Thread, stall_s: float) -> None:
        """Waits until `writing`, the thread of `run`, has ended or has made no progress for `stall_s` seconds."""
        written = -1
        while writing.is_alive() and self.written != written:
            written = self.written
            writing.join(stall_s)

    def _write(self, frame: FrameResult, *, in_order: bool) -> None:
        """Writes a frame to the sinks that need the frames in order, or to the others."""
        for sink in [sink for sink in self._sinks if sink.in_order is in_order]:
            self._run_guarded(sink, partial(sink.write, frame))
        self.written += 1

    def _write_missing(self, missing: PresentedTick) -> None:
        for sink in [sink for sink in self._sinks if isinstance(sink, MissingOutputSink)]:
            self._run_guarded(sink, partial(sink.write_missing, missing))
        self.written += 1

    def _run_guarded(self, sink: Sink, step: Callable[[], None]) -> None:
        try:
            step()
        except SkylaneError as error:
            _LOG.error("sink removed", sink=type(sink).__name__, reason=str(error))
            self.faults.append(error)
            self._sinks.remove(sink)
            with suppress(SkylaneError):  # The first error is reported already.
                sink.close()
