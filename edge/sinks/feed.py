"""The thread that feeds the sinks, and the check that they support the task of a model."""

import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from edge.reliability.frame_record import FrameRecord
from edge.reliability.pending_results import PendingResults
from edge.sinks.sink import FrameResult, Origin, Sink, SinkError
from edge.sinks.table import SINKS
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import apply
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.runtime.threads import BoundedQueue, lower_priority
from shared.tasks.task import TASKS, task_named

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


class SinkFeed:
    """Feeds the sinks from a low-priority thread, after everything that is measured.

    A sink that needs the frames in order gets a frame when no earlier one can get a result any more, but no later than
    when `max_held` frames wait; other sinks get it at once.
    """

    def __init__(self, sinks: Sequence[Sink], card: ModelCard, pending: PendingResults) -> None:
        """`pending`: the frames that may still get a result; the feed removes those that it gets."""
        has_heads = bool(task_named(card.task).heads)
        self.max_held = _MAX_HELD if has_heads else _RAW_MAX_HELD
        self.too_late = 0  # Results that arrived too late for sinks that need them in order.
        self.written = 0  # Number of writes; it grows as long as the sinks make progress.
        self.faults: list[SkylaneError] = []  # A sink that fails is removed; the run continues.
        self._sinks = list(sinks)
        self._card = card
        self._pending = pending
        # With each frame, the lowest number of a frame that could still get a result before it was queued.
        self._handover: BoundedQueue[tuple[FrameResult, int]] = BoundedQueue(_BACKLOG if has_heads else _RAW_BACKLOG)

    @property
    def needs_order(self) -> bool:
        """Whether a sink needs the frames in order."""
        return any(sink.in_order for sink in self._sinks)

    def put(self, record: FrameRecord, answer: ModelResult, origin: Origin = Origin.WORKER) -> None:
        """Queues a frame with its result; waits if the sinks are far behind, so that no result is lost."""
        if self._sinks and record.image is not None and record.geometry is not None:
            frame = self._frame_result(record, answer, origin)
            self._handover.put((frame, self._pending.first()))
        self._pending.remove(record.id.sequence)

    def end(self) -> None:
        """Ends the feed after the queued frames."""
        self._handover.close()

    def wait_until_written(self, writing: threading.Thread, stall_s: float) -> None:
        """Waits until `writing`, the thread of `run`, has ended or has made no progress for `stall_s` seconds."""
        written = -1
        while writing.is_alive() and self.written != written:
            written = self.written
            writing.join(stall_s)

    def run(self) -> None:
        """Writes until the end; the body of a thread."""
        lower_priority()
        waiting: list[tuple[int, FrameResult]] = []
        last_sequence = -1
        with self._handover.reader() as get:
            while (queued := get()) is not None:
                frame, complete_below = queued
                self._write(frame, in_order=False)
                if not self.needs_order:
                    continue
                if frame.sequence <= last_sequence:
                    self.too_late += 1
                    continue
                heapq.heappush(waiting, (frame.sequence, frame))
                while waiting and (waiting[0][0] < complete_below or len(waiting) > self.max_held):
                    last_sequence, first = heapq.heappop(waiting)
                    self._write(first, in_order=True)
            while waiting:
                self._write(heapq.heappop(waiting)[1], in_order=True)
            for sink in list(self._sinks):
                self._run_guarded(sink, sink.close)

    def _frame_result(self, record: FrameRecord, answer: ModelResult, origin: Origin) -> FrameResult:
        image: Any = record.image
        assert record.geometry is not None
        if image.shape[:2] != (record.geometry.target_height, record.geometry.target_width):
            image = apply(image, record.geometry)  # The worker resized this frame.
        if self._card.layout is Layout.BGR8:
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return FrameResult(
            camera=record.camera,
            sequence=record.id.sequence,
            frame_index=record.frame_index,
            stamp_ns=record.frame_stamp_ns,
            source_ns=record.source_ns,
            image=image,
            result=answer.result,
            geometry=record.geometry,
            model_version=answer.model_version,
            engine=answer.engine,
            model=answer.model,
            origin=origin,
            reused_sequence=record.reused_sequence,
        )

    def _write(self, frame: FrameResult, *, in_order: bool) -> None:
        for sink in [sink for sink in self._sinks if sink.in_order is in_order]:
            self._run_guarded(sink, partial(sink.write, frame))
        self.written += 1

    def _run_guarded(self, sink: Sink, step: Callable[[], None]) -> None:
        try:
            step()
        except SkylaneError as error:
            self.faults.append(error)
            self._sinks.remove(sink)
            with suppress(SkylaneError):  # The first error is reported already.
                sink.close()
