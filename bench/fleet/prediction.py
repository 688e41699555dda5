"""Predicts waiting times under dispatch by load from a queue with n equal servers, constant service and random arrivals.

    latency = inference time + overhead + wait in the M/D/n queue

The overhead is measured at the lowest load; no number is fitted. The distribution of the wait is exact: G. J. Franx, "A
simple solution for the M/D/c waiting time distribution", Operations Research Letters 29 (2001), 221 to 229.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.stats import poisson

from analysis.statistics.bootstrap import Floats
from bench.fleet.fleet_run import LOAD, FleetArrivals, FleetCase
from shared.terminal_table import Table, result_table

_VEHICLES = 20
_WINDOW = 64  # Large enough that no frame is dropped.
# Number of workers, inference time and load of each point. The first one has the lowest load.
_POINTS = (
    (4, 50.0, 0.3), (4, 50.0, 0.5), (4, 50.0, 0.6), (4, 50.0, 0.75), (4, 50.0, 0.85), (4, 50.0, 0.9), (2, 50.0, 0.8),
    (8, 50.0, 0.7), (4, 100.0, 0.8), (6, 80.0, 0.85),
)  # fmt: skip
_QUANTILES = {"median": 0.5, "p99": 0.99}
MEASURES = ("mean", *_QUANTILES)
_LARGEST_LOAD = 0.99  # From here on, a queue takes hours to reach its mean length.
_TAIL = 20  # The queue is cut where it is longer with a probability below e^-2 to the power of this number.


def formula_cases(seconds: float) -> list[FleetCase]:
    """Returns the load points that the formula is checked at, with 20 vehicles and Poisson arrivals."""
    return [
        FleetCase(
            f"{workers} × {service_ms:g} ms at {load:.0%}",
            (service_ms,) * workers,
            _VEHICLES,
            FleetArrivals.POISSON,
            load=load,
            window=_WINDOW,
            seconds=4 * seconds,
            dispatch=(LOAD,),
        )
        for workers, service_ms, load in _POINTS
    ]


@dataclass(frozen=True)
class SharedQueue:
    """The M/D/n queue: equal workers that each take a constant time, one queue in the order of arrival, Poisson arrivals."""

    workers: int
    service_ms: float
    arrivals_hz: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Returns the queue with the load of a run with equal workers."""
        worker_ms = list(record["workers"].values())
        return cls(len(worker_ms), worker_ms[0], record["offered_hz"])

    @property
    def utilisation(self) -> float:
        """The share of the workers' capacity that the arrivals need."""
        return self._offered / self.workers

    def waits_ms(self) -> dict[str, float]:
        """Returns mean, median and 99th percentile of the wait; infinite from a load of 99 % on."""
        if self.utilisation >= _LARGEST_LOAD:
            return dict.fromkeys(MEASURES, math.inf)
        return {"mean": self.mean_ms()} | {name: self.quantile_ms(share) for name, share in _QUANTILES.items()}

    def mean_ms(self) -> float:
        """Returns the mean wait: the mean length of the queue divided by the arrivals (Little's law)."""
        return float((1 - self._queued).sum()) / self._offered * self.service_ms

    def quantile_ms(self, share: float) -> float:
        """Returns the wait that is not exceeded by a share of the frames."""
        if self.probability(0.0) >= share:
            return 0.0
        longest = len(self._queued) // self.workers - 1
        return float(brentq(lambda services: self.probability(services) - share, 0, longest)) * self.service_ms

    def probability(self, services: float) -> float:
        """Returns the probability that a frame waits at most this multiple of the inference time (Franx, theorem 1)."""
        periods = math.floor(services) + 1
        last = periods * self.workers - 1
        arrived = poisson.pmf(np.arange(last + 1), self._offered * (periods - services))
        return float(arrived @ self._queued[last::-1])

    @property
    def _offered(self) -> float:
        """The mean number of frames that arrive while one is inferred."""
        return self.arrivals_hz * self.service_ms / 1e3

    @cached_property
    def _queued(self) -> Floats:
        """The probability that at most 0, 1, 2 … frames wait, from the balance of the frames present over one inference."""
        size = self.workers * 4 + math.ceil(_TAIL / (1 - self.utilisation))
        present = np.arange(size)
        balance = poisson.pmf(present[:, None] - np.maximum(present - self.workers, 0), self._offered) - np.eye(size)
        balance[-1] = 1.0  # The probabilities sum to 1.
        shares = np.linalg.solve(balance, np.eye(size)[-1])
        return np.asarray(np.cumsum(shares)[self.workers :])


def check_formula(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the overhead, and the predicted and measured latencies of the runs of `formula_cases`.

    The overhead is the median latency at the lowest load, where most frames do not wait, without the inference.
    """
    queues = [SharedQueue.of(run) for run in runs]
    base = min(range(len(runs)), key=lambda place: queues[place].utilisation)
    overhead_ms = runs[base]["latency_ms"]["median"] - queues[base].service_ms - queues[base].waits_ms()["median"]
    points = [
        {
            "case": run["case"],
            "utilisation": queue.utilisation,
            "predicted_ms": {
                name: queue.service_ms + overhead_ms + wait_ms for name, wait_ms in queue.waits_ms().items()
            },
            "measured_ms": {name: run["latency_ms"][name] for name in MEASURES},
            "predicted_hz": min(queue.arrivals_hz, run["capacity_hz"]),
            "throughput_hz": run["throughput_hz"],
        }
        for run, queue in zip(runs, queues, strict=True)
    ]
    return {"formula": {"overhead_ms": overhead_ms}, "points": points}


def prediction_tables(prediction: Mapping[str, Any]) -> Iterator[Table | str]:
    """Predicted and measured latencies of each load point, and the overhead."""
    columns = {"point": "<!", "load": ".2f", **dict.fromkeys(MEASURES, "")}
    rows = []
    for each in prediction["points"]:
        pairs = [(each["measured_ms"][name], each["predicted_ms"][name]) for name in MEASURES]
        cells = [f"{own:.0f}, {formula:.0f} ({formula / own - 1:+.0%})" for own, formula in pairs]
        rows.append((each["case"], each["utilisation"], *cells))
    yield result_table("Latency in ms: measured, by the M/D/n queue (error)", columns, rows)
    yield f"overhead {prediction['formula']['overhead_ms']:.1f} ms, measured at the lowest load"
