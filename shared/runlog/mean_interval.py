"""Student's interval of the mean of independent runs or drives."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

MIN_RUNS: Final = 3  # Independent runs, drives or blocks required for an interval over them, or for a test.
CONFIDENCE: Final = 0.95


def mean_interval(values: Sequence[float], *, share_of: float | None = None) -> tuple[float, float]:
    """Returns Student's 95 % interval of the mean, or NaN for fewer than three values and for equal ones.

    Equal values have no spread, from which nothing follows for other runs. With `share_of`, the values are 0 to
    that number: an end that would leave this range is computed from log odds instead (delta method).

    Raises:
        ModuleNotFoundError: SciPy is not installed.
    """
    if len(values) < MIN_RUNS or min(values) == max(values):
        return math.nan, math.nan
    from scipy.special import expit, logit, stdtrit  # noqa: PLC0415  It is part of another extra.

    mean = fmean(values)
    reach = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(len(values))
    low, high = mean - reach, mean + reach
    if share_of is not None and not 0 <= low <= high <= share_of:
        share = mean / share_of
        odds, odds_reach = logit(share), reach / share_of / (share * (1 - share))
        low = low if low >= 0 else share_of * float(expit(odds - odds_reach))
        high = high if high <= share_of else share_of * float(expit(odds + odds_reach))
    return low, high
