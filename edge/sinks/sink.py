"""The contract and the table of sinks, which write results."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from shared.errors import SkylaneError
from shared.imaging.geometry import Geometry
from shared.imaging.image_files import ImageArray
from shared.registry import PluginTable
from shared.runlog.presented_log import OutputOrigin
from shared.task import Task


class SinkError(SkylaneError):
    """A sink does not support the model's task, or cannot write."""


class Origin(StrEnum):
    """The source of a frame's result."""

    WORKER = "worker"
    REUSED = "reused"  # The result of an earlier frame.
    LOCAL = "local"  # The vehicle's own model.


@dataclass(frozen=True, slots=True)
class FrameResult:
    """A frame with a result: the model's input as RGB H×W×3 uint8, and the result."""

    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    image: ImageArray
    result: Any  # The type that the task of the model decodes.
    geometry: Geometry
    model_version: str = ""
    engine: str = ""
    model: str = ""  # Name of the model that computed the result, unless it is the requested one.
    origin: Origin | OutputOrigin = Origin.WORKER
    reused_sequence: int | None = None  # The frame that the result was computed for, if it is another one.
    age_ns: int | None = None  # Age of the output of a presenter; None for a result as it came back.
    source_sequence: int | None = None  # The frame that the remote result in the output was computed for.


class Sink(Protocol):
    """Writes results. Built as `Sink(folder, card, **settings)`: the run's folder, the model's card, its settings.

    A second one gets the outputs of a presenter; with `write_missing` (see `writer.py`) also the frames without an output.
    """

    in_order: bool  # Whether the sink needs the frames in order; it then gets none that come too late.

    def write(self, frame: FrameResult) -> None:
        """Writes one frame."""

    def close(self) -> None:
        """Completes the files."""


class SinkEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Sink.
    extra: str  # The pip extra that installs its library.
    holds: Callable[[Task], bool] = lambda _: True  # Whether it can write the results of a task.
    settings: tuple[str, ...] = ()  # Fields of EdgeConfig that it takes as keyword arguments.


SINKS = PluginTable(
    "sink",
    "skylane.sinks",
    SinkEntry,
    {
        "png": SinkEntry("edge.sinks.image_sinks:PngSink", "edge"),
        "video": SinkEntry("edge.sinks.video:VideoSink", "edge", settings=("video_codec",)),
        "bag": SinkEntry("edge.sinks.bag:BagSink", "edge", lambda task: task.has_shape or "boxes" in task.heads),
        "overlay": SinkEntry("edge.sinks.image_sinks:OverlaySink", "edge"),
        "jsonl": SinkEntry("edge.sinks.jsonl:JsonLinesSink", "edge"),
        "npz": SinkEntry("edge.sinks.image_sinks:NpzSink", "edge", lambda task: not task.heads),
    },
)
