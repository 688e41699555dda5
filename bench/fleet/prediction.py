"""The formula for waiting times under dispatch by load: fitted at some load points, checked at others.

For n workers that each take s for a frame, and Poisson arrivals that need a share ρ of their capacity, with C Erlang's
probability that all n servers of one queue are busy:

    mean wait = s · (β · ρ / (2 (1 - ρ)) + (1 - β) · C / (2 n (1 - ρ)))
    quantile q of the wait = k_q · mean wait · ln(ρ / (1 - q)) / ρ          (0 if that is negative)
    latency = s + overhead + wait

The first term is the wait at a worker of its own that gets its share of the arrivals at random (M/D/1), the second the wait
in one queue for all workers (M/D/n, with the approximation that constant service halves the wait of M/M/n). Dispatch by load
is in between: β is fitted. The quantiles are those of an exponential wait with probability ρ, times a fitted factor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

import numpy as np

from bench.fleet.arrivals import FleetArrivals
from bench.fleet.cases import LOAD, FleetCase

_VEHICLES = 20
_WINDOW = 64  # Large enough that no frame is dropped.
# Number of workers, inference time and load of each point.
_FITTED_POINTS = ((4, 50.0, 0.3), (4, 50.0, 0.6), (4, 50.0, 0.75), (4, 50.0, 0.9))
_OTHER_POINTS = ((4, 50.0, 0.5), (4, 50.0, 0.85), (2, 50.0, 0.8), (8, 50.0, 0.7), (4, 100.0, 0.8), (6, 80.0, 0.85))
_QUANTILES = {"median": 0.5, "p99": 0.99}
MEASURES = ("mean", *_QUANTILES)


def formula_cases(seconds: float) -> list[FleetCase]:
    """Returns the load points of the formula, with 20 vehicles and Poisson arrivals: first the fitted ones, then others."""
    return [
        FleetCase(
            _point_name(*point),
            (point[1],) * point[0],
            _VEHICLES,
            FleetArrivals.POISSON,
            load=point[2],
            window=_WINDOW,
            seconds=4 * seconds,
            dispatches=(LOAD,),
        )
        for point in (*_FITTED_POINTS, *_OTHER_POINTS)
    ]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A load on equal workers."""

    workers: int
    service_ms: float
    arrivals_hz: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Returns the load of a run with equal workers."""
        services_ms = list(record["workers"].values())
        return cls(len(services_ms), services_ms[0], record["offered_hz"])

    @property
    def utilisation(self) -> float:
        """The share of the workers' capacity that the arrivals need."""
        return self.arrivals_hz * self.service_ms / 1e3 / self.workers

    @property
    def random_wait_ms(self) -> float:
        """The mean wait if each frame goes to a worker at random."""
        busy = self.utilisation
        return self.service_ms * busy / (2 * (1 - busy))

    @property
    def shared_wait_ms(self) -> float:
        """The mean wait if all workers take their frames from one queue."""
        busy = self.utilisation
        return self.service_ms * _erlang_c(self.workers, busy) / (2 * self.workers * (1 - busy))


@dataclass(frozen=True, slots=True)
class WaitFormula:
    """The formula with its fitted numbers."""

    overhead_ms: float
    share: float  # β: 0 is one queue for all workers, 1 is a random choice.
    factors: Mapping[str, float]  # k_q by the name of the quantile.

    @classmethod
    def fit(cls, runs: Sequence[Mapping[str, Any]]) -> Self:
        """Fits the formula to runs with different loads.

        The overhead is the median latency at the lowest load, where most frames do not wait, without the inference.
        """
        points = [LoadPoint.of(run) for run in runs]
        lowest = min(range(len(runs)), key=lambda place: points[place].utilisation)
        overhead_ms = runs[lowest]["latency_ms"]["median"] - points[lowest].service_ms
        waits_ms = [
            run["latency_ms"]["mean"] - point.service_ms - overhead_ms for run, point in zip(runs, points, strict=True)
        ]
        # wait - shared = β · (random - shared): least squares, with errors relative to the latency.
        shared_ms, random_ms, total_ms = (
            np.array(values)
            for values in (
                [point.shared_wait_ms for point in points],
                [point.random_wait_ms for point in points],
                [run["latency_ms"]["mean"] for run in runs],
            )
        )
        slope, rest = (random_ms - shared_ms) / total_ms, (np.array(waits_ms) - shared_ms) / total_ms
        share = float(np.clip(slope @ rest / (slope @ slope), 0, 1))
        factors = {}
        for name, quantile in _QUANTILES.items():
            shapes = [_shape(point.utilisation, quantile) for point in points]
            factors[name] = fmean(
                (run["latency_ms"][name] - point.service_ms - overhead_ms) / (wait_ms * shape)
                for run, point, wait_ms, shape in zip(runs, points, waits_ms, shapes, strict=True)
                if shape > 0
            )
        return cls(overhead_ms, share, factors)

    def latency_ms(self, point: LoadPoint) -> dict[str, float]:
        """Predicts mean, median and 99th percentile of the time from due to the result."""
        busy = point.utilisation
        wait_ms = self.share * point.random_wait_ms + (1 - self.share) * point.shared_wait_ms
        waits_ms = {"mean": wait_ms} | {
            name: self.factors[name] * wait_ms * _shape(busy, quantile) for name, quantile in _QUANTILES.items()
        }
        return {name: point.service_ms + self.overhead_ms + value for name, value in waits_ms.items()}


def check_formula(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fits the formula to some runs of `formula_cases`; returns it, and the predicted and measured latencies of all runs."""
    fitted_names = {_point_name(*point) for point in _FITTED_POINTS}
    formula = WaitFormula.fit([run for run in runs if run["case"] in fitted_names])
    points = []
    for run in runs:
        point = LoadPoint.of(run)
        points.append(
            {
                "case": run["case"],
                "is_fitted": run["case"] in fitted_names,
                "utilisation": point.utilisation,
                "predicted_ms": formula.latency_ms(point),
                "measured_ms": {name: run["latency_ms"][name] for name in MEASURES},
                "predicted_hz": min(point.arrivals_hz, run["capacity_hz"]),
                "throughput_hz": run["throughput_hz"],
            }
        )
    numbers = {"overhead_ms": formula.overhead_ms, "share": formula.share, "factors": formula.factors}
    return {"formula": numbers, "points": points}


def _shape(busy: float, quantile: float) -> float:
    """The quantile of an exponential wait that occurs with probability `busy`, divided by its mean over all frames."""
    return max(0.0, math.log(busy / (1 - quantile)) / busy)


def _erlang_c(servers: int, busy: float) -> float:
    """The probability that all servers of an M/M/n queue are busy, by Erlang's recursion for the loss probability."""
    offered = servers * busy
    loss = 1.0
    for server in range(1, servers + 1):
        loss = offered * loss / (server + offered * loss)
    return loss / (1 - busy * (1 - loss))


def _point_name(workers: int, service_ms: float, load: float) -> str:
    """Names a load point of the formula."""
    return f"{workers} × {service_ms:g} ms at {load:.0%}"
