"""The load of a worker, by model: vehicles send their frames to the worker with the shortest expected answer."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from shared.messages.msgpack_reader import MAX_ITEMS, Milliseconds, Name, Schema

MAX_REPORT_BYTES = 1 << 16  # Enough for 256 models with the longest names; vehicles keep one report per worker.

_FrameCount = Annotated[int, Meta(ge=0, le=1 << 20)]


class WorkerLoad(Struct, frozen=True):
    """The load of one model on one worker at the moment of sending."""

    queue: _FrameCount  # Frames of all models that were accepted and have no reply yet, those in an engine included.
    free: _FrameCount  # Further frames that the worker accepts before it replies `overloaded`.
    wait_ms: Milliseconds  # Expected time until the engine is free for a frame that arrives now.
    answer_ms: Milliseconds  # Expected time from then until its reply: decoding, inference and postprocessing.
    spacing_ms: Milliseconds  # Time by which each further frame lengthens the wait.


class LoadReport(Struct, frozen=True):
    """The retained load message of a worker."""

    session: Name  # Session of the worker's process, as in its status.
    models: Annotated[Mapping[Name, WorkerLoad], Meta(max_length=MAX_ITEMS)]


_REPORTS = Schema(LoadReport, noun="a load report", max_bytes=MAX_REPORT_BYTES)
pack_load, unpack_load = _REPORTS.write, _REPORTS.read
