"""Fleets of vehicles with the real dispatcher and simulated workers: throughput, latency, stampedes, and lies."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from shared.messages.load import WorkerLoad
from tests.edge.workers.fleet_simulation import (
    SECOND,
    FleetSimulation,
    SimulatedWorker,
    ideal_latencies_ms,
    percentile,
)

UNEQUAL_MS = (100.0, 100.0, 100.0, 500.0)
EQUAL_MS = (100.0,) * 4


def capacity_hz(service_ms: tuple[float, ...]) -> float:
    """Returns the frames per second of all workers together."""
    return sum(1e3 / each_ms for each_ms in service_ms)


@pytest.mark.parametrize(("vehicles", "window"), [(1, 8), (50, 1)])
def test_unequal_workers_reach_their_capacity(vehicles: int, window: int) -> None:
    """A group that takes turns reaches 8 of the 32 frames per second."""
    fleet = FleetSimulation(UNEQUAL_MS, vehicles)
    fleet.play_saturated(window, seconds=30)
    assert len(fleet.answered_ns) / 30 >= 29.5  # The capacity is 32; no load is known for the first frames.


@pytest.mark.parametrize("vehicles", [1, 50])
def test_tail_latency_is_near_that_of_a_single_queue(vehicles: int) -> None:
    """An ideal dispatcher knows when each worker is free; vehicles know it from reports and replies."""
    rate_hz = 0.8 * capacity_hz(UNEQUAL_MS)
    fleet = FleetSimulation(UNEQUAL_MS, vehicles)
    fleet.play_poisson(rate_hz, seconds=60)
    ideal = ideal_latencies_ms(UNEQUAL_MS, rate_hz, frames=20_000)
    assert percentile(fleet.latencies_ms, 99) <= 1.5 * percentile(ideal, 99)


def test_equal_workers_answer_as_soon_as_those_of_a_group() -> None:
    """Vehicles cannot know of each other's latest frames, but the broker deals frames to equal workers in turn."""
    rate_hz = 0.8 * capacity_hz(EQUAL_MS)
    fleets = [FleetSimulation(EQUAL_MS, vehicles=16, by_load=by_load) for by_load in (True, False)]
    for fleet in fleets:
        fleet.play_poisson(rate_hz, seconds=60)
    by_load, by_turn = (percentile(fleet.latencies_ms, 99) for fleet in fleets)
    assert by_load <= 1.25 * by_turn
    assert min(fleets[0].shares.values()) > 0.7 * max(fleets[0].shares.values())


def test_equal_workers_reach_the_throughput_of_a_group() -> None:
    """A single vehicle with a small window keeps every worker busy."""
    fleet = FleetSimulation(EQUAL_MS, vehicles=1)
    fleet.play_saturated(window=4, seconds=30)
    assert len(fleet.answered_ns) / 30 >= 0.97 * capacity_hz(EQUAL_MS)


@pytest.mark.parametrize("service_ms", [EQUAL_MS, (80.0, 100.0, 150.0, 200.0)])
def test_fifty_vehicles_do_not_stampede(service_ms: tuple[float, ...]) -> None:
    """All of them know the same reports, and must not all send their next frames to the same worker."""
    fleet = FleetSimulation(service_ms, vehicles=50)
    fleet.play_poisson(0.9 * capacity_hz(service_ms), seconds=20)
    since_ns: dict[int, int] = {}
    longest_ns = 0
    for at_ns, lengths in fleet.queues:
        for worker, length in enumerate(lengths):
            if length > max(1.0, 2 * sum(lengths) / len(lengths)):
                longest_ns = max(longest_ns, at_ns - since_ns.setdefault(worker, at_ns))
            else:
                since_ns.pop(worker, None)
    assert longest_ns <= SECOND


def test_a_worker_that_joins_has_its_share_within_a_second() -> None:
    """Its status and its first load report are enough."""
    fleet = FleetSimulation(UNEQUAL_MS, vehicles=8)
    fleet.play_saturated(window=4, seconds=10)
    fleet.join(SimulatedWorker("new", 100.0))
    fleet.run_until(fleet.now_ns + SECOND)
    served = fleet.workers["new"].served
    fleet.run_until(fleet.now_ns + SECOND)
    assert fleet.workers["new"].served - served >= 8  # Of the 10 that it can serve.


@dataclass(frozen=True)
class Lie:
    """A false load that a worker reports."""

    wait_ms: float = 0.0
    answer_ms: float = 1.0

    def __call__(self, load: WorkerLoad) -> WorkerLoad:
        """Replaces what the worker measured."""
        return replace(load, queue=0, free=1000, wait_ms=self.wait_ms, answer_ms=self.answer_ms, spacing_ms=0.0)


@pytest.mark.parametrize(("lie", "vehicles"), [(Lie(), 1), (Lie(answer_ms=100.0), 16)])
def test_a_worker_that_claims_to_be_idle_attracts_few_frames(lie: Lie, vehicles: int) -> None:
    """Its answers come later than its reports promise, so that vehicles soon expect them later."""
    rate_hz = 0.6 * capacity_hz(UNEQUAL_MS)
    honest, misled = (FleetSimulation(UNEQUAL_MS[:3], vehicles) for _ in range(2))
    honest.join(SimulatedWorker("slow", 500.0))
    misled.join(SimulatedWorker("slow", 500.0, claims=lie))
    for fleet in (honest, misled):
        fleet.play_poisson(rate_hz, seconds=30)
    median, honest_median = (percentile(fleet.latencies_ms, 50) for fleet in (misled, honest))
    assert misled.shares["slow"] <= 0.15 * misled.shares.total()
    assert median <= 1.5 * honest_median


def test_a_worker_that_claims_to_be_busy_gets_no_frames_while_others_are_free() -> None:
    """Only its operator is harmed."""
    fleet = FleetSimulation(EQUAL_MS, vehicles=4)
    fleet.join(SimulatedWorker("shy", 100.0, claims=Lie(wait_ms=80_000_000.0)))
    fleet.play_poisson(0.6 * capacity_hz(EQUAL_MS), seconds=20)
    assert fleet.shares["shy"] < 0.02 * fleet.shares.total()
    assert percentile(fleet.latencies_ms, 50) < 200
