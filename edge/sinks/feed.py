"""The thread that feeds the sinks, and the check that they support the task of a model."""

import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from edge.reliability.ledger import FrameRecord
from edge.sinks.sink import FrameResult, ModelResult, Origin, Sink, SinkError
from edge.sinks.table import SINKS
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import apply
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.runtime.threads import BoundedQueue, lower_priority
from shared.tasks.task import TASKS, task_named

_BACKLOG, _RAW_BACKLOG = 64, 8  # Frames; the raw outputs of one may take a hundred megabytes.
_REORDER = 16  # Frames held back so that a delayed answer still gets its place.


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

    A sink that needs the frames in order gets each frame once 16 later ones have arrived; other sinks get it at once.
    """

    def __init__(self, sinks: Sequence[Sink], card: ModelCard) -> None:
        self.too_late = 0  # Results that arrived too late for sinks that need them in order.
        self.written = 0  # Number of writes; it grows as long as the sinks make progress.
        self.faults: list[SkylaneError] = []  # A sink that fails is removed; the run continues.
        self._sinks = list(sinks)
        self._card = card
        self._handover: BoundedQueue[FrameResult] = BoundedQueue(
            _BACKLOG if task_named(card.task).heads else _RAW_BACKLOG
        )

    def put(self, record: FrameRecord, answer: ModelResult, origin: Origin = Origin.WORKER) -> None:
        """Queues a frame with its result; waits if the sinks are far behind, so that no result is lost."""
        if not self._sinks or record.image is None or record.geometry is None:
            return
        image: Any = record.image
        if image.shape[:2] != (record.geometry.target_height, record.geometry.target_width):
            image = apply(image, record.geometry)  # The worker resized this frame.
        if self._card.layout is Layout.BGR8:
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        self._handover.put(
            FrameResult(
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
                origin=origin,
                reused_sequence=record.reused_sequence,
            )
        )

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
            while (frame := get()) is not None:
                self._write(frame, in_order=False)
                if not any(sink.in_order for sink in self._sinks):
                    continue
                if frame.sequence <= last_sequence:
                    self.too_late += 1
                    continue
                heapq.heappush(waiting, (frame.sequence, frame))
                if len(waiting) > _REORDER:
                    last_sequence, first = heapq.heappop(waiting)
                    self._write(first, in_order=True)
            while waiting:
                self._write(heapq.heappop(waiting)[1], in_order=True)
            for sink in list(self._sinks):
                self._run_guarded(sink, sink.close)

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
