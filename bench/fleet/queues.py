"""The queues of the workers over time, and the ideal that dispatch is compared with: one queue for all of them.

A queue contains the frames that a worker has received and not answered yet, the one in its engine included. The times
at which it received and answered each frame show it.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.fleet.frames import FleetFrame

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Span = tuple[int, int]  # Begin and end, in nanoseconds.

_LARGEST_RATIO = 2.0  # Time that a worker needs for its queue, divided by the mean of all: above it, it is unbalanced.
_WINDOW_NS = 500_000_000  # Queues and shares after an event are means over this time.
_STEP_NS = 50_000_000
_SHARE = 0.8  # A worker that joined has its share from this part of a fair share on.


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """The queues as step functions. `lengths[i, j]` is the queue of worker j from `times_ns[i]` to the next time."""

    workers: tuple[str, ...]
    times_ns: Times
    lengths: Floats
    services_ms: Floats  # The inference time of each worker.
    is_alive: npt.NDArray[np.bool_]  # Shape of `lengths`; False before a worker joined, and after it was killed.

    @classmethod
    def of(cls, frames: Sequence[FleetFrame], alive: Mapping[str, tuple[float, Span]], span_ns: Span) -> "QueueHistory":
        """Reconstructs the queues from the frames that got a reply; `alive`: inference time and life of each worker."""
        workers, alive_ns = tuple(alive), [life for _, life in alive.values()]
        places = {name: place for place, name in enumerate(workers)}
        steps = [
            (at_ns, places[frame.worker], change)
            for frame in frames
            if frame.replied_ns and frame.worker in places
            for at_ns, change in ((frame.received_ns, 1), (frame.replied_ns, -1))
        ]
        marks = {at_ns for span in (*alive_ns, span_ns) for at_ns in span}
        times_ns = np.array(sorted({at_ns for at_ns, _, _ in steps} | marks), np.int64)
        changes = np.zeros((len(times_ns), len(workers)))
        rows = np.searchsorted(times_ns, [at_ns for at_ns, _, _ in steps])
        columns = np.array([place for _, place, _ in steps], np.int64)
        np.add.at(changes, (rows, columns), [change for _, _, change in steps])
        begins, ends = np.array(alive_ns, np.int64).T
        is_alive = (times_ns[:, None] >= begins) & (times_ns[:, None] < ends)
        is_inside = (times_ns >= span_ns[0]) & (times_ns <= span_ns[1])
        lengths, services_ms = np.cumsum(changes, axis=0), np.array([service_ms for service_ms, _ in alive.values()])
        return cls(workers, times_ns[is_inside], lengths[is_inside], services_ms, is_alive[is_inside])

    def means(self, span_ns: Span | None = None) -> Floats:
        """Returns the mean queue of each worker over a time, by default over all."""
        begin_ns, end_ns = span_ns or (int(self.times_ns[0]), int(self.times_ns[-1]))
        edges = np.clip(np.append(self.times_ns, max(end_ns, self.times_ns[-1])), begin_ns, end_ns)
        spent_ns = np.diff(edges)[:, None]
        means: Floats = (self.lengths * spent_ns).sum(axis=0) / max(1, end_ns - begin_ns)
        return means

    def longest_imbalance_s(self) -> float:
        """Returns the longest time for which one worker needed over twice the mean of all workers for its queue."""
        waits_ms = self.lengths * self.services_ms
        alive = np.where(self.is_alive, waits_ms, 0.0)
        mean = alive.sum(axis=1) / np.maximum(1, self.is_alive.sum(axis=1))
        is_above = self.is_alive & (waits_ms > _LARGEST_RATIO * mean[:, None])
        longest_ns = 0
        for place in range(len(self.workers)):
            begin_ns: int | None = None
            for at_ns, above in zip(self.times_ns.tolist(), is_above[:, place].tolist(), strict=True):
                if begin_ns is not None:
                    longest_ns = max(longest_ns, at_ns - begin_ns)
                begin_ns = (at_ns if begin_ns is None else begin_ns) if above else None
        return longest_ns / 1e9

    def balanced_after_ms(self, event_ns: int) -> float | None:
        """Returns the time from an event until the load is balanced; None if it is not until the end.

        It is balanced if over half a second every worker needs between half and twice the mean of all for its queue; less if
        it would answer one more frame only after that mean. Unequal workers then have unequal queues.
        """
        for begin_ns in range(event_ns, int(self.times_ns[-1]) - _WINDOW_NS, _STEP_NS):
            is_alive = self.is_alive[np.searchsorted(self.times_ns, begin_ns, side="right") - 1]
            services_ms = self.services_ms[is_alive]
            waits_ms = self.means((begin_ns, begin_ns + _WINDOW_NS))[is_alive] * services_ms
            mean_ms = waits_ms.mean()
            has_enough = (waits_ms >= mean_ms / _LARGEST_RATIO) | (waits_ms + services_ms >= mean_ms)
            if waits_ms.max() <= _LARGEST_RATIO * mean_ms and has_enough.all():
                return (begin_ns - event_ns) / 1e6
        return None


def share_after_ms(frames: Sequence[FleetFrame], worker: str, workers: int, joined_ns: int) -> float | None:
    """Returns the time from which on a worker that joined receives its share of the frames; None if it never does.

    It has its share if it receives at least 0.8 / `workers` of all frames of half a second.
    """
    received = sorted((frame.received_ns, frame.worker == worker) for frame in frames if frame.received_ns)
    times_ns = np.array([at_ns for at_ns, _ in received], np.int64)
    own = np.concatenate([[0], np.cumsum([is_own for _, is_own in received])])
    for begin_ns in range(joined_ns, int(times_ns[-1]) - _WINDOW_NS, _STEP_NS):
        first, last = np.searchsorted(times_ns, [begin_ns, begin_ns + _WINDOW_NS])
        if last > first and (own[last] - own[first]) / (last - first) >= _SHARE / workers:
            return (begin_ns - joined_ns) / 1e6
    return None


def ideal_latencies_ms(arrivals_ns: Sequence[int], services_ms: Sequence[float]) -> list[float]:
    """Simulates one FCFS queue; returns the time from arrival to the end of the service of each frame.

    A frame is served by the fastest server that is free at its turn. `arrivals_ns` must be sorted; `services_ms` contains
    the service time of each server.
    """
    services_ns = sorted(round(service_ms * 1e6) for service_ms in services_ms)
    free = list(range(len(services_ns)))  # A heap of free servers, the fastest first.
    busy: list[tuple[int, int]] = []  # A heap of the ends of services, each with its server.
    latencies_ms = []
    for arrived_ns in arrivals_ns:
        start_ns = arrived_ns if free else max(arrived_ns, busy[0][0])
        while busy and busy[0][0] <= start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        server = heapq.heappop(free)
        end_ns = start_ns + services_ns[server]
        heapq.heappush(busy, (end_ns, server))
        latencies_ms.append((end_ns - arrived_ns) / 1e6)
    return latencies_ms
