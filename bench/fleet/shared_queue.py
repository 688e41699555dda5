"""The waiting times of a queue with several equal servers, constant service and random arrivals (M/D/n).

Their distribution is exact: G. J. Franx, "A simple solution for the M/D/c waiting time distribution", Operations Research
Letters 29 (2001), 221 to 229.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.stats import poisson

from analysis.statistics.bootstrap import Floats

_QUANTILES = {"median": 0.5, "p99": 0.99}
MEASURES = ("mean", *_QUANTILES)
_LARGEST_LOAD = 0.99  # From here on, a queue takes hours to reach its mean length.
_TAIL = 20  # The queue is cut where it is longer with a probability below e^-2 to the power of this number.


@dataclass(frozen=True)
class SharedQueue:
    """The M/D/n queue: equal workers that each take a constant time, one queue in the order of arrival, Poisson arrivals."""

    workers: int
    service_ms: float
    arrivals_hz: float

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
