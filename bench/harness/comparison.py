"""What alternating rounds gave of one way: its overhead by round, and what each part of a journey took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.harness.samples import spread
from shared.runlog.latency_table import PARTS
from shared.stages import Stage

TOTAL = "total"


@dataclass(slots=True)
class Laps:
    """The rounds of one way. Overhead: a frame's journey without its inference."""

    overhead_ms: list[list[float]] = field(default_factory=list)  # A list a round.
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, frames: Sequence[Mapping[str, float]]) -> None:
        """A round is over; of each frame its `total`, its `inferred` and whatever else is told, by name."""
        self.overhead_ms.append([frame[TOTAL] - frame[Stage.INFERRED] for frame in frames])
        for frame in frames:
            for name, value in frame.items():
                self.parts.setdefault(name, []).append(value)

    @property
    def median_ms(self) -> float:
        """Of all rounds' overheads."""
        return median(value for part in self.overhead_ms for value in part)

    def figures(self) -> dict[str, Any]:
        """Spread of the overhead, the rounds' medians, and the medians of what was told of each frame."""
        every = [value for part in self.overhead_ms for value in part]
        return {
            "n": len(every),
            "overhead_ms": spread(every),
            "by_round_ms": [median(part) for part in self.overhead_ms],
            "parts": {name: median(values) for name, values in self.parts.items()},
        }

    def against(self, other: "Laps") -> dict[str, Any]:
        """This way's overhead to that of another: of all rounds, and of each."""
        rounds = zip(self.overhead_ms, other.overhead_ms, strict=True)
        return {
            "ratio": self.median_ms / other.median_ms,
            "by_round": [median(own) / median(theirs) for own, theirs in rounds],
        }


def parts_of(row: Mapping[str, str]) -> dict[str, float]:
    """A line of the vehicle node's log by part, in milliseconds, and its `bytes_up` and `bytes_down`."""
    times = {str(part): float(row[f"{part}_ms"]) for part in (*PARTS, TOTAL)}
    return {**times, "bytes_up": float(row["bytes_up"]), "bytes_down": float(row["bytes_down"])}
