from types import SimpleNamespace
from typing import Any, cast

from bench.faults.scenarios.workers import answered_since

_MS = 10**6


def _vehicle(*rows: tuple[str, float, float]) -> Any:
    """A vehicle whose log holds such rows: outcome, when the frame was due, and when it was answered."""
    told = [
        {"outcome": outcome, "t_due_ns": str(round(due_ms * _MS)), "t_mask_decoded_ns": str(round(came_ms * _MS))}
        for outcome, due_ms, came_ms in rows
    ]
    return cast("Any", SimpleNamespace(rows=lambda: told))


def test_an_answer_to_an_older_frame_is_none_of_afterwards() -> None:
    """A worker that is back answers what it held first; that it takes new frames again is another matter."""
    vehicle = _vehicle(("answered", 900.0, 2000.0), ("answered", 1100.0, 2100.0), ("lost", 1200.0, 0.0))
    assert answered_since(vehicle, 1000 * _MS) == [2100 * _MS]
