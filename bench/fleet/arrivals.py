"""The schedules of the vehicles' frames, and the one thread that sends all frames."""

import heapq
import queue
import random
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum

from bench.fleet.vehicle import FleetVehicle
from edge.pacing.arrivals import poisson_ns, uniform_ns
from shared import clock

_STOP_POLL_S = 0.1


class FleetArrivals(StrEnum):
    """The schedule of all vehicles of a fleet."""

    SATURATED = "saturated"  # Each vehicle keeps its window full.
    UNIFORM = "uniform"  # Each vehicle sends at a constant rate, from a random phase on.
    POISSON = "poisson"  # Each vehicle's frames are a Poisson process, and so are those of the fleet.


def schedules(arrivals: FleetArrivals, vehicles: int, rate_hz: float, seed: int) -> list[Iterator[int]]:
    """Returns the due times of each vehicle in nanoseconds from the begin of the run; `rate_hz`: of each vehicle.

    A seed always gives the same times. Saturated vehicles have no schedule.
    """
    if arrivals is FleetArrivals.SATURATED:
        return []
    generator = random.Random(seed)
    found = []
    for _ in range(vehicles):
        # A vehicle begins somewhere in its first interval: otherwise the frames of all would be due at the same time.
        phase_ns = round(generator.random() * 1e9 / rate_hz)
        is_poisson = arrivals is FleetArrivals.POISSON
        times = poisson_ns(rate_hz, generator.getrandbits(62)) if is_poisson else uniform_ns(rate_hz)
        found.append(_shifted(times, phase_ns))
    return found


def _shifted(times_ns: Iterator[int], by_ns: int) -> Iterator[int]:
    return (at_ns + by_ns for at_ns in times_ns)


class FleetPacer:
    """Sends the frames of all vehicles when they are due, or when a window has room."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._room: queue.SimpleQueue[FleetVehicle] = queue.SimpleQueue()

    def has_room(self, vehicle: FleetVehicle) -> None:
        """Reports that a frame of a vehicle has ended. Thread-safe."""
        self._room.put(vehicle)

    def run(self, vehicles: Sequence[FleetVehicle], due: Sequence[Iterator[int]], seconds: float) -> None:
        """Sends the frames that are due within `seconds`, or keeps windows full until stopped; the body of a thread.

        `due` contains the due times of each vehicle in nanoseconds from now; without them, windows are kept full. Every
        frame of the schedule is offered, however late: a delay of this thread counts as latency.
        """
        if due:
            self._run_open_loop(vehicles, due, round(seconds * 1e9))
        else:
            self._keep_windows_full(vehicles)

    def _run_open_loop(self, vehicles: Sequence[FleetVehicle], due: Sequence[Iterator[int]], duration_ns: int) -> None:
        begin_ns = clock.now_ns()
        upcoming = [(next(times), place) for place, times in enumerate(due)]
        heapq.heapify(upcoming)
        while upcoming[0][0] < duration_ns:
            at_ns, place = upcoming[0]
            self._stop.wait(max(0, begin_ns + at_ns - clock.now_ns()) / 1e9)
            vehicles[place].offer(begin_ns + at_ns)
            heapq.heapreplace(upcoming, (next(due[place]), place))

    def _keep_windows_full(self, vehicles: Sequence[FleetVehicle]) -> None:
        for vehicle in vehicles:
            vehicle.fill()
        while not self._stop.is_set():
            try:
                self._room.get(timeout=_STOP_POLL_S).fill()
            except queue.Empty:
                continue
