"""The metrics of the last minute that workers and vehicles publish, for `skylane status` and other viewers."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from shared.messages.msgpack_reader import Milliseconds, Name, Schema

METRICS_INTERVAL_NS = 2_000_000_000  # Shortest time between two reports of a node.
MAX_METRICS_BYTES = 1 << 12
MAX_OUTCOMES = 16
MAX_REASON = 64  # Characters.

Outcome = Annotated[str, Meta(pattern=r"\A[a-z_]{1,32}\Z", description="an outcome of 1 to 32 of a-z _")]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]  # Frames in a minute, or in flight.
_Outcomes = Annotated[Mapping[Outcome, _Count], Meta(max_length=MAX_OUTCOMES)]
_Totals = Annotated[Mapping[Outcome, Annotated[int, Meta(ge=0, le=1 << 53)]], Meta(max_length=MAX_OUTCOMES)]
_Seconds = Annotated[float, Meta(ge=0, le=60)]
_Percent = Annotated[float, Meta(ge=0, le=1_000_000)]
_Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]


class Quantiles(Struct, frozen=True):
    """Quantiles of the durations of one part of a frame's path."""

    p50_ms: Milliseconds
    p95_ms: Milliseconds | None  # None: too few frames.

    def __post_init__(self) -> None:
        """Raises a ValueError if the numbers cannot be of the same times."""
        if self.p95_ms is not None and self.p95_ms < self.p50_ms:
            raise ValueError("p95_ms is less than p50_ms")


class WorkerMetrics(Struct, frozen=True):
    """The last minute of a worker."""

    session: Name
    seconds: _Seconds  # The time that the counts cover; less than 60 in the first minute.
    frames: _Outcomes  # Replies by status.
    queue: Quantiles | None  # Waiting for a decoder and for the engine.
    inference: Quantiles | None
    cpu_percent: _Percent | None  # Percent of one core, for the worker's process and those of its engines.
    memory_bytes: _Bytes | None
    gpu_percent: _Percent | None  # The busiest GPU of the machine.
    gpu_memory_bytes: _Bytes | None  # Memory in use on all GPUs of the machine.
    totals: _Totals | None = None  # The same as `frames`, since the start of the process.


class VehicleMetrics(Struct, frozen=True):
    """The last minute of a vehicle."""

    session: Name
    model: Name
    seconds: _Seconds
    frames: _Outcomes  # Frames that ended, by outcome, as in the latency log.
    reason: Annotated[str, Meta(max_length=MAX_REASON)]  # The most frequent reason of frames without a result.
    total: Quantiles | None  # Time from due to the result.
    in_flight: _Count
    clock_error_ms: Milliseconds | None  # Error bound of the clock offset to the worker of the latest answer.
    totals: _Totals | None = None  # The same as `frames`, since the start of the run.


_WORKERS = Schema(WorkerMetrics, noun="metrics of a worker", optional=("totals",), max_bytes=MAX_METRICS_BYTES)
_VEHICLES = Schema(VehicleMetrics, noun="metrics of a vehicle", optional=("totals",), max_bytes=MAX_METRICS_BYTES)
pack_worker_metrics, unpack_worker_metrics = _WORKERS.write, _WORKERS.read
pack_vehicle_metrics, unpack_vehicle_metrics = _VEHICLES.write, _VEHICLES.read
