"""The contract and the table of sinks, which write results; the codecs of the video sink."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from shared.errors import SkylaneError
from shared.imaging.geometry import Geometry
from shared.imaging.image_files import ImageArray
from shared.messages.topics import camera_name
from shared.registry import PluginTable
from shared.runlog.presented_log import OutputOrigin, PresentedRow
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
    age_ns: int | None = None  # Age of the output of a presenter; None for a result as received.
    source_sequence: int | None = None  # The frame that the remote result in the output was computed for.
    camera_id: str = ""  # The camera in the frame's id, see FrameId.

    @property
    def camera_name(self) -> str:
        """The name of the camera in files, different for each camera of a run."""
        return self.camera_id or camera_name(self.camera)


@dataclass(frozen=True, slots=True)
class PresentedTick(PresentedRow):
    """A tick with its output, on which the vehicle could act. Also a row of the log of outputs."""

    frame_index: int = 0
    frame_stamp_ns: int = 0
    source_ns: int = 0
    due_ns: int = 0
    presented_ns: int = 0
    camera_id: str = ""  # The camera in the frame's id, see FrameId.
    result: Any = None  # The result to act on, of the type that the task of the model decodes; None without an output.
    image: ImageArray | None = None  # The model's input: RGB, H×W×3 uint8. None for a tick that was not taken.
    geometry: Geometry | None = None

    @property
    def sequence(self) -> int:
        """The number of the frame, as in the latency log."""
        return self.tick

    @property
    def stamp_ns(self) -> int:
        """The stamp of the frame."""
        return self.frame_stamp_ns

    @property
    def after_due_ns(self) -> int:
        """The time after the tick was due at which its output was ready."""
        return self.presented_ns - self.due_ns


class Sink(Protocol):
    """Writes results. Built as `Sink(folder, card, **settings)`: the run's folder, the model's card, its settings.

    A second one gets a presenter's outputs and, with `write_missing` (see `writer.py`), the ticks without an output.
    """

    in_order: bool  # True if the sink needs the frames in order; frames that come too late are then left out.

    def write(self, frame: FrameResult) -> None:
        """Writes one frame."""

    def close(self) -> None:
        """Completes the files."""


class SinkEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Sink.
    extra: str  # The pip extra that installs its library.
    holds: Callable[[Task], bool] = lambda _: True  # Returns whether it can write results of a task.
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
        "rerun": SinkEntry("edge.sinks.rerun:RerunSink", "view", lambda task: bool(task.heads)),
        "foxglove": SinkEntry("edge.sinks.foxglove:FoxgloveSink", "view", lambda task: bool(task.heads)),
    },
)


class VideoCodec(StrEnum):
    """Codec of an overlay video."""

    VP9 = "vp9"
    AV1 = "av1"
    H264 = "h264"
