from typing import Any

import pytest

from bench.fleet.prediction import LoadPoint, WaitFormula, check_formula, formula_cases

_TRUE = WaitFormula(overhead_ms=4.0, share=0.3, factors={"median": 1.2, "p99": 0.8})


def _run(case: str, point: LoadPoint, formula: WaitFormula = _TRUE) -> dict[str, Any]:
    return {
        "case": case,
        "workers": {f"worker-{number}": point.service_ms for number in range(point.workers)},
        "offered_hz": point.arrivals_hz,
        "throughput_hz": point.arrivals_hz,
        "capacity_hz": point.workers * 1e3 / point.service_ms,
        "latency_ms": formula.latency_ms(point),
    }


def test_one_worker_has_the_wait_of_a_single_queue() -> None:
    """M/D/1 at 80 %: two services, whether the queue is shared or not."""
    point = LoadPoint(workers=1, service_ms=100, arrivals_hz=8)
    assert point.random_wait_ms == pytest.approx(200)
    assert point.shared_wait_ms == pytest.approx(200)


def test_a_shared_queue_of_two_workers_follows_erlang() -> None:
    """M/M/2 at 50 %: both are busy with probability 1/3, so the mean wait is 1/3 service, with constant service half of it."""
    assert LoadPoint(workers=2, service_ms=100, arrivals_hz=10).shared_wait_ms == pytest.approx(100 / 6)


def test_the_fit_recovers_the_formula() -> None:
    """Runs that follow the formula exactly give its numbers, and other loads are then predicted exactly."""
    loads = (LoadPoint(4, 50, hz) for hz in (24, 48, 60, 72))
    formula = WaitFormula.fit([_run("fitted", load) for load in loads])
    assert (formula.overhead_ms, formula.share) == pytest.approx((4, 0.3))
    assert formula.factors == pytest.approx(_TRUE.factors)
    other = LoadPoint(8, 100, 60)
    assert formula.latency_ms(other) == pytest.approx(_TRUE.latency_ms(other))


def test_the_check_predicts_points_that_were_not_fitted() -> None:
    """Each case of the suite is a point, and only the first ones are fitted."""
    runs = [
        _run(case.name, LoadPoint(len(case.services_ms), case.services_ms[0], case.settings("load", 1).rate_hz * 20))
        for case in formula_cases(1.0)
    ]
    points = check_formula(runs)["points"]
    assert {each["is_fitted"] for each in points} == {True, False}
    for each in points:
        assert each["predicted_ms"] == pytest.approx(each["measured_ms"])
