"""What a sink is, the table of sinks, and the thread that feeds them."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.ledger import Journey
from shared.errors import SkylaneError
from shared.frames import Layout
from shared.geometry import Geometry, apply
from shared.model_card import ModelCard
from shared.opencv import cv2
from shared.registry import Entry
from shared.threads import Handover, step_back

SINKS = {
    "png": Entry("edge.sinks.png:PngSink", "edge"),
    "video": Entry("edge.sinks.video:VideoSink", "edge"),
    "bag": Entry("edge.sinks.bag:BagSink", "edge"),
    "overlay": Entry("edge.sinks.overlay:OverlaySink", "edge"),
}
_REORDER = 16  # Frames kept back so that an answer that was overtaken still finds its place.
_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Segmented:
    """An answered frame: RGB H×W×3 uint8 as the model saw it, and its class ids, H×W uint8."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    picture: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    geometry: Geometry


class Sink(Protocol):
    """Something that masks are written to."""

    in_order: bool  # Whether a frame that comes too late for its place is of no use.

    def write(self, segmented: Segmented) -> None:
        """Write one frame; frames of a camera come in order."""

    def close(self) -> None:
        """Finish the files."""


class SinkFeed:
    """Feeds the sinks from a thread of its own, in order, behind everything that is measured."""

    def __init__(self, sinks: Sequence[Sink], card: ModelCard) -> None:
        self.overtaken = 0  # Frames that came too late for their place; sinks that need the order left them out.
        self.written = 0  # Frames that every sink was given.
        self.faults: list[SkylaneError] = []  # A sink that failed is left out from then on; the run goes on.
        self._sinks = list(sinks)
        self._card = card
        self._handover: Handover[Segmented] = Handover(_BACKLOG)

    def put(self, journey: Journey, mask: npt.NDArray[np.uint8]) -> None:
        """Queue an answered frame; waits where the sinks are far behind, for no mask may be lost."""
        if not self._sinks or journey.picture is None or journey.geometry is None:
            return
        picture: Any = journey.picture
        if picture.shape[:2] != (journey.geometry.target_height, journey.geometry.target_width):
            picture = apply(picture, journey.geometry)  # Sent as it was, and resized by the worker.
        if self._card.layout is Layout.BGR8:
            picture = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
        self._handover.put(
            Segmented(
                camera=journey.camera,
                sequence=journey.id.sequence,
                frame_index=journey.frame_index,
                stamp_ns=journey.frame_stamp_ns,
                source_ns=journey.source_ns,
                picture=picture,
                mask=mask,
                geometry=journey.geometry,
            )
        )

    def end(self) -> None:
        """No more frames will come."""
        self._handover.close()

    def run(self) -> None:
        """Write until the end; the body of the sinks' thread."""
        step_back()
        waiting: list[tuple[int, Segmented]] = []
        written = -1
        with self._handover.reader() as get:
            while (segmented := get()) is not None:
                if segmented.sequence <= written:
                    self.overtaken += 1
                    self._write(segmented, [sink for sink in self._sinks if not sink.in_order])
                    continue
                heapq.heappush(waiting, (segmented.sequence, segmented))
                if len(waiting) > _REORDER:
                    written, first = heapq.heappop(waiting)
                    self._write(first, list(self._sinks))
            while waiting:
                self._write(heapq.heappop(waiting)[1], list(self._sinks))
            for sink in list(self._sinks):
                self._guarded(sink, sink.close)

    def _write(self, segmented: Segmented, sinks: Sequence[Sink]) -> None:
        for sink in sinks:
            self._guarded(sink, partial(sink.write, segmented))
        self.written += 1

    def _guarded(self, sink: Sink, step: Callable[[], None]) -> None:
        try:
            step()
        except SkylaneError as error:
            self.faults.append(error)
            self._sinks.remove(sink)
