import math
from itertools import accumulate
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy.stats import poisson

from bench.fleet.prediction import check_formula, formula_cases, prediction_tables
from bench.fleet.run_record import ideal_latencies_ms
from bench.fleet.shared_queue import SharedQueue

_OVERHEAD_MS = 4.0


def _run(case: str, queue: SharedQueue) -> dict[str, Any]:
    """Returns the record of a run that follows the formula."""
    return {
        "case": case,
        "workers": {f"worker-{number}": queue.service_ms for number in range(queue.workers)},
        "offered_hz": queue.arrivals_hz,
        "throughput_hz": queue.arrivals_hz,
        "capacity_hz": queue.workers * 1e3 / queue.service_ms,
        "latency_ms": {name: queue.service_ms + _OVERHEAD_MS + wait for name, wait in queue.waits_ms().items()},
    }


def _erlang_c(servers: int, busy: float) -> float:
    """The probability of a wait in the M/M/n queue, by its formula."""
    offered = servers * busy
    last = poisson.pmf(servers, offered)
    return float(last / (last + (1 - busy) * poisson.cdf(servers - 1, offered)))


@pytest.mark.parametrize("busy", [0.3, 0.8, 0.95])
def test_one_worker_is_the_known_single_queue(busy: float) -> None:
    """M/D/1: a frame waits with probability ρ, for ρ / (2 (1 - ρ)) services on average (Pollaczek and Khinchine)."""
    queue = SharedQueue(workers=1, service_ms=100, arrivals_hz=10 * busy)
    assert 1 - queue.probability(0.0) == pytest.approx(busy)
    assert queue.mean_ms() == pytest.approx(100 * busy / (2 * (1 - busy)))


@pytest.mark.parametrize("services", [0.0, 0.4, 1.0, 2.5])
def test_the_wait_at_one_worker_follows_erlangs_distribution(services: float) -> None:
    """Erlang, 1909: the distribution of the wait of M/D/1, whose terms alternate."""
    busy = 0.7
    queue = SharedQueue(workers=1, service_ms=1e3, arrivals_hz=busy)
    terms = [
        (busy * (number - services)) ** number / math.factorial(number) * math.exp(-busy * (number - services))
        for number in range(math.floor(services) + 1)
    ]
    assert queue.probability(services) == pytest.approx((1 - busy) * math.fsum(terms))


@pytest.mark.parametrize(("workers", "busy"), [(2, 0.5), (4, 0.8), (6, 0.85), (8, 0.9)])
def test_the_probability_of_a_wait_is_near_erlangs_c_and_not_the_load(workers: int, busy: float) -> None:
    """Constant service lets a little fewer frames wait than M/M/n, and for half as long or a little more."""
    queue = SharedQueue(workers, 1e3, workers * busy)
    known = _erlang_c(workers, busy)
    assert 0.85 * known < 1 - queue.probability(0.0) < known < busy
    mean_of_exponential_service_ms = 1e3 * known / (workers * (1 - busy))
    assert 0.5 < queue.mean_ms() / mean_of_exponential_service_ms < 0.6


def test_erlangs_c_of_the_tests_is_the_known_one() -> None:
    """M/M/1 waits with probability ρ; of two servers at 50 %, both are busy with probability 1/3."""
    assert _erlang_c(1, 0.7) == pytest.approx(0.7)
    assert _erlang_c(2, 0.5) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.7), (4, 0.8), (6, 0.85)])
def test_a_simulation_has_the_same_waits(workers: int, busy: float) -> None:
    """The simulated queue serves 200,000 frames in the order of arrival; its seed is fixed."""
    random = Random(7)
    arrivals_ns = [round(at) for at in accumulate(random.expovariate(workers * busy / 1e9) for _ in range(200_000))]
    waits_ms = [latency - 1e3 for latency in ideal_latencies_ms(arrivals_ns, (1e3,) * workers)]
    expected = SharedQueue(workers, 1e3, workers * busy)
    assert fmean(waits_ms) == pytest.approx(expected.mean_ms(), rel=0.05)
    assert float(np.percentile(waits_ms, 99)) == pytest.approx(expected.quantile_ms(0.99), rel=0.08)
    assert fmean(wait > 1e-3 for wait in waits_ms) == pytest.approx(1 - expected.probability(0.0), abs=0.01)


def test_the_quantile_inverts_the_distribution() -> None:
    """Frames that do not wait have the quantile 0."""
    queue = SharedQueue(4, 100, 32)
    assert queue.probability(queue.quantile_ms(0.99) / 100) == pytest.approx(0.99)
    assert queue.quantile_ms(0.3) == 0.0


@pytest.mark.parametrize("arrivals_hz", [40.0, 39.8, 60.0])
def test_a_queue_that_grows_without_end_has_no_finite_wait(arrivals_hz: float) -> None:
    """A short run may offer more than the capacity by chance; its prediction is infinite, not negative."""
    assert set(SharedQueue(4, 100, arrivals_hz).waits_ms().values()) == {math.inf}


def test_the_check_measures_the_overhead_and_predicts_every_point() -> None:
    """Runs that follow the formula exactly are predicted exactly, whatever their overhead."""
    runs = [
        _run(
            case.name,
            SharedQueue(len(case.worker_ms), case.worker_ms[0], case.vehicle_hz * case.vehicles),
        )
        for case in formula_cases(1.0)
    ]
    found = check_formula(runs)
    assert found["formula"]["overhead_ms"] == pytest.approx(_OVERHEAD_MS)
    assert [each["case"] for each in found["points"]] == [run["case"] for run in runs]
    for each in found["points"]:
        assert each["predicted_ms"] == pytest.approx(each["measured_ms"])
    *_, note = prediction_tables(found)
    assert note == "overhead 4.0 ms, measured at the lowest load"
