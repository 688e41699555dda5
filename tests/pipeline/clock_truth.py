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
    sent_ns, returned_ns = (vehicle.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("sent", "returned"))
    received_ns, replied_ns = (worker.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("received", "replied"))
    offset_ns = worker.now_at(returned_ns) - vehicle.now_at(returned_ns)
    return ClockErrors(
        offset_ms=float(row["clock_offset_ms"]) - offset_ns / 1e6,
        uplink_ms=float(row["uplink_ms"]) - (received_ns - sent_ns) / 1e6,
        downlink_ms=float(row["downlink_ms"]) - (returned_ns - replied_ns) / 1e6,
        bound_ms=float(row["clock_error_ms"]),
    )
