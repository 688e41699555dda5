"""What a sink is, the table of sinks, and the thread that feeds them."""

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

_REORDER = 16  # Frames kept back so that an answer that was overtaken still finds its place.
_BACKLOG = 64
_BACKLOGS = {Task.TENSORS: 8}  # Each of them may be a hundred megabytes.


class SinkError(SkylaneError):
    """A sink that cannot hold what it is given, or that cannot write."""


class SinkEntry(NamedTuple):
    """A row of the table of sinks."""

    path: str  # "module:attribute".
    extra: str  # The pip extra that brings its library.
    tasks: tuple[Task, ...] = tuple(Task)  # Tasks whose results it can hold.
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
    """What a task's results are written to where nobody says."""
    return _DEFAULTS[task]


def check_sinks(names: Sequence[str], card: ModelCard) -> None:
    """Whether all these sinks hold what a model answers.

    Raises:
        SinkError: one does not; the message names those that do.
    """
    for name in names:
        if card.task not in SINKS[name].tasks:
            others = ", ".join(other for other, entry in SINKS.items() if card.task in entry.tasks)
            raise SinkError(
                f"sink {name} holds {' or '.join(SINKS[name].tasks)}, model {card.name} answers {card.task}: use {others}"
            )


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered frame: RGB H×W×3 uint8 as the model saw it, and the result."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    picture: npt.NDArray[np.uint8]
    result: Result
    geometry: Geometry
    model_version: str = ""
    engine: str = ""


class Sink(Protocol):
    """Something that results are written to.

    Built as `Sink(folder, card)` with the run's folder and the model's card, and the settings that its entry names.
    """

    in_order: bool  # Whether a frame that comes too late for its place is of no use.

    def write(self, answered: Answered) -> None:
        """Write one frame; frames of a camera come in order."""

    def close(self) -> None:
        """Finish the files."""


class SinkFeed:
    """Feeds the sinks from a thread of its own, behind everything that is measured.

    A sink that needs the frames in order gets each when it is certain enough that none before it is still to come; any
    other at once.
    """

    def __init__(self, sinks: Sequence[Sink], card: ModelCard) -> None:
        self.overtaken = 0  # Frames that came too late for their place; sinks that need the order left them out.
        self.written = 0  # Frames that sinks were given; it rises for as long as they get on.
        self.faults: list[SkylaneError] = []  # A sink that failed is left out from then on; the run goes on.
        self._sinks = list(sinks)
        self._card = card
        self._handover: BoundedQueue[Answered] = BoundedQueue(_BACKLOGS.get(card.task, _BACKLOG))

    def put(self, journey: FrameRecord, message: ResultMessage, result: Result) -> None:
        """Queue an answered frame; waits where the sinks are far behind, for no result may be lost."""
        if not self._sinks or journey.picture is None or journey.geometry is None:
            return
        picture: Any = journey.picture
        if picture.shape[:2] != (journey.geometry.target_height, journey.geometry.target_width):
            picture = apply(picture, journey.geometry)  # Sent as it was, and resized by the worker.
        if self._card.layout is Layout.BGR8:
            picture = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
        self._handover.put(
            Answered(
                camera=journey.camera,
                sequence=journey.id.sequence,
                frame_index=journey.frame_index,
                stamp_ns=journey.frame_stamp_ns,
                source_ns=journey.source_ns,
                picture=picture,
                result=result,
                geometry=journey.geometry,
                model_version=message.model_version,
                engine=message.engine,
            )
        )

    def end(self) -> None:
        """No more frames will come."""
        self._handover.close()

    def wait_until_written(self, writing: threading.Thread, stall_s: float) -> None:
        """Waits until `writing`, the thread of `run`, has ended, or has written nothing for `stall_s` seconds."""
        written = -1
        while writing.is_alive() and self.written != written:
            written = self.written
            writing.join(stall_s)

    def run(self) -> None:
        """Write until the end; the body of the sinks' thread."""
        lower_priority()
        waiting: list[tuple[int, Answered]] = []
        written = -1
        with self._handover.reader() as get:
            while (answered := get()) is not None:
                self._write(answered, in_order=False)
                if not any(sink.in_order for sink in self._sinks):
                    continue
                if answered.sequence <= written:
                    self.overtaken += 1
                    continue
                heapq.heappush(waiting, (answered.sequence, answered))
                if len(waiting) > _REORDER:
                    written, first = heapq.heappop(waiting)
                    self._write(first, in_order=True)
            while waiting:
                self._write(heapq.heappop(waiting)[1], in_order=True)
            for sink in list(self._sinks):
                self._guarded(sink, sink.close)

    def _write(self, answered: Answered, *, in_order: bool) -> None:
        for sink in [sink for sink in self._sinks if sink.in_order is in_order]:
            self._guarded(sink, partial(sink.write, answered))
        self.written += 1

    def _guarded(self, sink: Sink, step: Callable[[], None]) -> None:
        try:
            step()
        except SkylaneError as error:
            self.faults.append(error)
            self._sinks.remove(sink)
            with suppress(SkylaneError):  # What is wrong has been told.
                sink.close()
