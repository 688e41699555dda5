"""The truth about clocks: all processes of a machine share CLOCK_MONOTONIC, so every stamp can be put on one axis."""

from collections.abc import Mapping
from dataclasses import dataclass

from ops.processes.null_worker import ClockReading


@dataclass(frozen=True, slots=True)
class ClockErrors:
    """The signed errors of a row compared with the truth, and the error bound that it states, in milliseconds."""

    offset_ms: float
    uplink_ms: float
    downlink_ms: float
    bound_ms: float


def clock_errors(row: Mapping[str, str], vehicle: ClockReading, worker: ClockReading) -> ClockErrors:
    """Compares an answered row with the truth; the offset is checked at the end of the exchange."""
    sent_ns, returned_ns = (monotonic_at(vehicle, int(row[f"t_{stage}_ns"])) for stage in ("sent", "returned"))
    received_ns, replied_ns = (monotonic_at(worker, int(row[f"t_{stage}_ns"])) for stage in ("received", "replied"))
    offset_ns = now_at(worker, returned_ns) - now_at(vehicle, returned_ns)
    return ClockErrors(
        offset_ms=float(row["clock_offset_ms"]) - offset_ns / 1e6,
        uplink_ms=float(row["uplink_ms"]) - (received_ns - sent_ns) / 1e6,
        downlink_ms=float(row["downlink_ms"]) - (returned_ns - replied_ns) / 1e6,
        bound_ms=float(row["clock_error_ms"]),
    )


def monotonic_at(clock: ClockReading, stamp_ns: int) -> int:
    """Converts a stamp of a process to CLOCK_MONOTONIC."""
    return clock.monotonic_ns + round((stamp_ns - clock.now_ns) / (1 + clock.drift_ppm / 1e6))


def now_at(clock: ClockReading, monotonic_ns: int) -> int:
    """Converts a time of CLOCK_MONOTONIC to the clock of a process."""
    return clock.now_ns + round((monotonic_ns - clock.monotonic_ns) * (1 + clock.drift_ppm / 1e6))
