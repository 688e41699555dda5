"""The price of processing a day of footage on a rented machine."""

import math
from dataclasses import dataclass

import pandas as pd

from analysis.logs.run_log import RunLog, frames_with_result, result_times_ns
from shared.errors import SkylaneError

_HOUR_S = 3600


class CostError(SkylaneError):
    """A price cannot be computed from these values."""


@dataclass(frozen=True, slots=True)
class FootageCost:
    """The price of some footage, and the values from which it was computed."""

    frames: int
    hours: float  # Processing time of the machine, not the duration of the footage.
    price: float  # Unrounded, in `currency`.
    currency: str
    price_per_hour: float
    footage_hz: float
    throughput_hz: float


def footage_cost(
    throughput_hz: float,
    price_per_hour: float,
    *,
    currency: str = "EUR",
    footage_hz: float = 24.0,
    footage_hours: float = 24.0,
) -> FootageCost:
    """Computes the price of footage: a machine is rented for frames / throughput, by the second.

    The serving-software comparison of 2022 priced 24 h of 24 fps in this way. `throughput_hz`: results per second; a run
    with fewer frames than the worker can process overestimates the price.

    Raises:
        CostError: a rate or a duration is not above 0, or the price is negative.
    """
    rates = {"throughput_hz": throughput_hz, "footage_hz": footage_hz, "footage_hours": footage_hours}
    for name, value in rates.items():
        if not (math.isfinite(value) and value > 0):
            raise CostError(f"{name} is {value:g}: give a value above 0")
    if not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise CostError(f"price_per_hour is {price_per_hour:g}: give the price of the machine per hour, 0 or above")
    frames = round(footage_hz * footage_hours * _HOUR_S)
    hours = frames / throughput_hz / _HOUR_S
    return FootageCost(frames, hours, hours * price_per_hour, currency, price_per_hour, footage_hz, throughput_hz)


def throughput_hz(run: RunLog) -> float:
    """Results per second of all vehicles, cameras and origins, from the first frame due to the last result.

    nan if no frame got a result. An open-loop run cannot exceed its frame rate: to measure a worker's capacity, play in a
    closed loop or at a higher rate.
    """
    results = frames_with_result(run.frames)
    duration_ns = result_times_ns(results).max() - results["t_due_ns"].min()
    return len(results) / float(duration_ns) * 1e9 if pd.notna(duration_ns) and duration_ns > 0 else math.nan
