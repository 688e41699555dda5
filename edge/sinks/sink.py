"""The sink contract, the table of sinks, and the thread that feeds them."""

import heapq
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.reliability.ledger import FrameRecord
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, apply
from shared.imaging.opencv import cv2
from shared.messages.frame import ResultMessage
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Result
from shared.runtime.threads import BoundedQueue, lower_priority

_REORDER = 16  # Frames held back so that a delayed answer still gets its place.
_BACKLOG = 64
_BACKLOGS = {Task.TENSORS: 8}  # A result of this task may take a hundred megabytes.


class SinkError(SkylaneError):
    """A sink does not support the model's task, or cannot write."""


class SinkEntry(NamedTuple):
    """A row of the table of sinks."""

    path: str  # "module:attribute".
    extra: str  # The pip extra that installs its library.
    tasks: tuple[Task, ...] = tuple(Task)  # Supported tasks.
    settings: tuple[str, ...] = ()  # Fields of EdgeConfig that it takes as keyword arguments.


SINKS = {
    "png": SinkEntry("edge.sinks.png:PngSink", "edge"),
    "video": SinkEntry("edge.sinks.video:VideoSink", "edge", settings=("video_codec",)),
    "bag": SinkEntry("edge.sinks.bag:BagSink", "edge", (Task.SEGMENTATION, Task.DETECTION)),
    "overlay": SinkEntry("edge.sinks.overlay:OverlaySink", "edge"),
    "jsonl": SinkEntry("edge.sinks.jsonl:JsonLinesSink", "edge"),
    "npz": SinkEntry("edge.sinks.npz:NpzSink", "edge", (Task.TENSORS,)),
}
_DEFAULTS = {
    Task.SEGMENTATION: ("png",),
    Task.CLASSIFICATION: ("jsonl", "overlay"),
    Task.DETECTION: ("jsonl", "overlay"),
    Task.TENSORS: ("jsonl", "npz"),
}


def default_sinks(task: Task) -> tuple[str, ...]:
    """Returns the sinks of a task for runs that configure none."""
    return _DEFAULTS[task]


def check_sinks(names: Sequence[str], card: ModelCard) -> None:
    """Checks that sinks support the task of a model.

    Raises:
        SinkError: a sink does not; the message names those that do.
    """
    for name in names:
        if card.task not in SINKS[name].tasks:
            others = ", ".join(other for other, entry in SINKS.items() if card.task in entry.tasks)
            raise SinkError(
                f"sink {name} holds {' or '.join(SINKS[name].tasks)}, model {card.name} answers {card.task}: use {others}"
            )


@dataclass(frozen=True, slots=True)
class FrameResult:
    """An answered frame: the model's input as RGB H×W×3 uint8, and the result."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    image: npt.NDArray[np.uint8]
    result: Result
    geometry: Geometry
    model_version: str = ""
    engine: str = ""


class Sink(Protocol):
    """Writes results.

    Built as `Sink(folder, card, **settings)` with the run's folder, the model's card, and the settings that its entry
    names.
    """

    in_order: bool  # Whether the sink needs the frames in order; it then gets none that come too late.

    def write(self, frame: FrameResult) -> None:
        """Writes one frame."""

    def close(self) -> None:
        """Completes the files."""


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
        self._handover: BoundedQueue[FrameResult] = BoundedQueue(_BACKLOGS.get(card.task, _BACKLOG))

    def put(self, record: FrameRecord, message: ResultMessage, result: Result) -> None:
        """Queues an answered frame; waits if the sinks are far behind, so that no result is lost."""
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
                result=result,
                geometry=record.geometry,
                model_version=message.model_version,
                engine=message.engine,
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
