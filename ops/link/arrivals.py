"""Computes when results arrive at a vehicle: after a fixed time, or over a link, without running any process."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.link.timing import LinkDirection, StreamTiming
from shared.network.link_spec import LinkSpec


@dataclass(frozen=True, slots=True)
class ResultArrivals:
    """The times at which results arrive, from the start of the drive; None for a frame that is not answered."""

    at_ns: tuple[int | None, ...]

    def newest(self, now_ns: int) -> int | None:
        """Returns the latest frame whose result has arrived; None before the first one."""
        arrived = [frame for frame, at_ns in enumerate(self.at_ns) if at_ns is not None and at_ns <= now_ns]
        return arrived[-1] if arrived else None

    def only_every(self, number: int) -> "ResultArrivals":
        """Returns the arrivals if only every n-th frame is sent."""
        return ResultArrivals(tuple(None if frame % number else at_ns for frame, at_ns in enumerate(self.at_ns)))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The parts of a round trip outside the link."""

    inference_ms: float
    other_ms: float = 8.0  # Work of vehicle and worker, measured beside the inference, see docs/results/index.md.
    window: int = 2  # Unanswered frames; a frame that is due while the window is full is not sent.


def after(age_ms: float, frames: int, period_ns: int) -> ResultArrivals:
    """Returns the arrivals if every result takes the same time."""
    return ResultArrivals(tuple(frame * period_ns + round(age_ms * 1e6) for frame in range(frames)))


def over_link(
    spec: LinkSpec,
    trip: RoundTrip,
    period_ns: int,
    sizes: Sequence[tuple[int, int]],
    outage_ns: tuple[int, int] | None = None,
) -> ResultArrivals:
    """Simulates one vehicle and one worker, which infers one frame at a time, over a link; the link's seed decides.

    `sizes`: bytes of each frame and of its result. `outage_ns`: begin and end of a time without a link. A frame or a result
    that is under way at its begin is lost, and a frame that is due within it is not sent.
    """
    leaves_up_s, leaves_down_s = (_crossing(spec, up=up) for up in (True, False))
    lost_from_ns, lost_to_ns = outage_ns or (math.inf, math.inf)
    vehicle_s, inference_s = trip.other_ms / 2e3, trip.inference_ms / 1e3
    worker_free_s = 0.0
    arrivals: list[int | None] = []
    for frame, (frame_bytes, result_bytes) in enumerate(sizes):
        due_ns = frame * period_ns
        unanswered = sum(at_ns is not None and at_ns > due_ns for at_ns in arrivals)
        if unanswered >= trip.window or lost_from_ns <= due_ns < lost_to_ns:
            arrivals.append(None)
            continue
        received_s = leaves_up_s(frame_bytes, due_ns / 1e9 + vehicle_s)
        worker_free_s = max(worker_free_s, received_s) + inference_s
        at_ns = round(leaves_down_s(result_bytes, worker_free_s + vehicle_s) * 1e9)
        is_lost = due_ns < lost_to_ns and at_ns >= lost_from_ns
        arrivals.append(None if is_lost else at_ns)
    return ResultArrivals(tuple(arrivals))


def _crossing(spec: LinkSpec, *, up: bool) -> Callable[[int, float], float]:
    """Returns the function of one direction of the link, with one connection.

    It returns when the last byte of a message of this size that is sent now has crossed the link.
    """
    direction = LinkDirection(spec, up=up)
    stream = StreamTiming(direction, 0, Counter())

    def leaves_s(size: int, now_s: float) -> float:
        for sent in range(0, size, direction.piece_bytes):
            piece = min(direction.piece_bytes, size - sent)
            at_s = stream.release_s(piece, size - sent - piece, now_s)
        return at_s

    return leaves_s
