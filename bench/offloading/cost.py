"""What it costs to have a day of footage segmented, by the hour of the machine that does it."""

import math
from dataclasses import dataclass

import pandas as pd

from bench.logs.run_log import RunLog
from shared.errors import SkylaneError
from shared.runlog.latency_log import Outcome

_HOUR_S = 3600


class CostError(SkylaneError):
    """A price cannot be worked out from what was given."""


@dataclass(frozen=True, slots=True)
class FootageCost:
    """The price of some footage, and what it was worked out from."""

    frames: int
    hours: float  # How long the machine is busy with them; not how long the footage lasts.
    price: float  # In `currency`, unrounded.
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
    """Price the footage: frames / throughput is how long a machine is rented, by the second.

    That is how the serving-software comparison of 2022 priced 24 h of 24 fps. `throughput_hz`: frames answered a second;
    a run that was played slower than the worker could go makes footage look dearer than it is.

    Raises:
        CostError: a rate or a length that is not above 0, or a price that is not 0 or above.
    """
    rates = {"throughput_hz": throughput_hz, "footage_hz": footage_hz, "footage_hours": footage_hours}
    for name, value in rates.items():
        if not (math.isfinite(value) and value > 0):
            raise CostError(f"{name} is {value:g}: footage can be priced only where it is above 0")
    if not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise CostError(f"price_per_hour is {price_per_hour:g}: give what an hour of the machine costs, 0 or above")
    frames = round(footage_hz * footage_hours * _HOUR_S)
    hours = frames / throughput_hz / _HOUR_S
    return FootageCost(frames, hours, hours * price_per_hour, currency, price_per_hour, footage_hz, throughput_hz)


def throughput_hz(run: RunLog) -> float:
    """The frames that came back answered, a second: from the first one due to the last mask decoded.

    Of all vehicles and cameras in the log; nan where no frame was answered. An open-loop run cannot show more than it
    was played at: for what a worker can do, play it closed loop or faster than it can follow.
    """
    answered = run.frames[run.frames["outcome"] == Outcome.ANSWERED]
    lasted_ns = answered["t_mask_decoded_ns"].max() - answered["t_due_ns"].min()
    return len(answered) / float(lasted_ns) * 1e9 if pd.notna(lasted_ns) and lasted_ns > 0 else math.nan
