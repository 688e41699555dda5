from types import SimpleNamespace
from typing import Any

from bench.faults.scenarios.workers import answered_since

_MS = 10**6


def _vehicle(*rows: tuple[str, float, float]) -> Any:
    """Returns a vehicle whose log has these rows: outcome, due time of the frame, and time of the answer."""
    records = [
        {"outcome": outcome, "t_due_ns": str(round(due_ms * _MS)), "t_mask_decoded_ns": str(round(answered_ms * _MS))}
        for outcome, due_ms, answered_ms in rows
    ]
    return SimpleNamespace(rows=lambda outcome: [record for record in records if record["outcome"] == outcome])


def test_only_answers_to_frames_that_were_due_later_are_counted() -> None:
    """A resumed worker first answers the frames that it held, which does not show that it accepts new frames."""
    vehicle = _vehicle(("answered", 900.0, 2000.0), ("answered", 1100.0, 2100.0), ("lost", 1200.0, 0.0))
    assert answered_since(vehicle, 1000 * _MS) == [2100 * _MS]
