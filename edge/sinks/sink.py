"""The contract of a sink, which writes results, and the table of all sinks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shared.errors import SkylaneError
from shared.imaging.geometry import Geometry
from shared.imaging.image_files import ImageArray
from shared.tasks.task import Task


class SinkEntry(NamedTuple):
    """A row of the table of sinks."""

    path: str  # "module:attribute".
    extra: str  # The pip extra that installs its library.
    holds: Callable[[Task], bool] = lambda _: True  # Whether it can write the results of a task.
    settings: tuple[str, ...] = ()  # Fields of EdgeConfig that it takes as keyword arguments.


SINKS = {
    "png": SinkEntry("edge.sinks.png:PngSink", "edge"),
    "video": SinkEntry("edge.sinks.video:VideoSink", "edge", settings=("video_codec",)),
    "bag": SinkEntry("edge.sinks.bag:BagSink", "edge", lambda task: task.has_shape or "boxes" in task.heads),
    "overlay": SinkEntry("edge.sinks.overlay:OverlaySink", "edge"),
    "jsonl": SinkEntry("edge.sinks.jsonl:JsonLinesSink", "edge"),
    "npz": SinkEntry("edge.sinks.npz:NpzSink", "edge", lambda task: not task.heads),
}


class SinkError(SkylaneError):
    """A sink does not support the model's task, or cannot write."""


@dataclass(frozen=True, slots=True)
class FrameResult:
    """An answered frame: the model's input as RGB H×W×3 uint8, and the result."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    image: ImageArray
    result: Any  # As the task of the model decodes it.
    geometry: Geometry
    model_version: str = ""
    engine: str = ""


class Sink(Protocol):
    """Writes results. Built as `Sink(folder, card, **settings)`: the run's folder, the model's card, its settings."""

    in_order: bool  # Whether the sink needs the frames in order; it then gets none that come too late.

    def write(self, frame: FrameResult) -> None:
        """Writes one frame."""

    def close(self) -> None:
        """Completes the files."""
