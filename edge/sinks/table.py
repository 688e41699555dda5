"""The table of sinks."""

from collections.abc import Callable
from typing import NamedTuple

from shared.tasks.task import Task


class SinkEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Sink.
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
