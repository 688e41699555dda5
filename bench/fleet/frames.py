"""The frames of a fleet's run, read from the vehicles' logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.harness.frame_accounting import FrameAccounts
from shared.runlog.latency_log import Outcome, read_rows

VEHICLE_FOLDERS = "vehicle-*"


@dataclass(frozen=True, slots=True)
class FleetFrame:
    """One frame. All times are in nanoseconds by the clock of the fleet; 0 if the frame did not get that far."""

    vehicle: str
    outcome: str
    worker: str  # The worker that replied; empty without a reply.
    due_ns: int
    sent_ns: int
    received_ns: int  # Time at the worker.
    replied_ns: int
    done_ns: int

    @property
    def is_answered(self) -> bool:
        """True if the frame got a result in time."""
        return self.outcome == Outcome.ANSWERED

    @property
    def latency_ms(self) -> float:
        """Time from due to the decoded result; only of answered frames."""
        return (self.done_ns - self.due_ns) / 1e6


def read_frames(folder: Path) -> list[FleetFrame]:
    """Returns the frames of all vehicles, in the order in which they were due.

    Raises:
        LogError: a log is missing.
    """
    frames = [_frame(row) for vehicle in sorted(folder.glob(VEHICLE_FOLDERS)) for row in read_rows(vehicle)]
    return sorted(frames, key=lambda frame: frame.due_ns)


def account(folder: Path) -> FrameAccounts:
    """Counts the frames of all vehicles, and checks their logs as `skylane report --check` does."""
    accounts = FrameAccounts()
    for vehicle in sorted(folder.glob(VEHICLE_FOLDERS)):
        accounts.add(vehicle)
    return accounts


def _frame(row: Mapping[str, str]) -> FleetFrame:
    offset_ns = round(float(row["clock_offset_ms"] or 0) * 1e6)  # The worker's clock minus ours.
    received_ns, replied_ns = (int(row[name] or 0) for name in ("t_received_ns", "t_replied_ns"))
    return FleetFrame(
        vehicle=row["vehicle"],
        outcome=row["outcome"],
        worker=row["worker"],
        due_ns=int(row["t_due_ns"]),
        sent_ns=int(row["t_sent_ns"] or 0),
        received_ns=received_ns and received_ns - offset_ns,
        replied_ns=replied_ns and replied_ns - offset_ns,
        done_ns=int(row["t_mask_decoded_ns"] or 0),
    )
