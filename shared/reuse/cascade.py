"""The rule of the cascade: which answers of a local model are good enough, and which frames go to the reference model.

It follows the cascade of NoScope (see `gate`): two thresholds divide the local model's scores into a certain no, a certain
yes, and the frames between, which the reference model must answer.
"""

from dataclasses import dataclass

import numpy as np

from shared.errors import SkylaneError
from shared.task import Confidence


class ThresholdError(SkylaneError):
    """The thresholds of a cascade are not usable."""


@dataclass(frozen=True, slots=True)
class CascadeThresholds:
    """The scores that are certain: those up to `c_low` (only of two-sided scores), and those from `c_high` on."""

    c_low: float
    c_high: float

    def __post_init__(self) -> None:
        problem = threshold_problem(self.c_low, self.c_high)
        if problem is not None:
            raise ThresholdError(problem)


def threshold_problem(c_low: float, c_high: float) -> str | None:
    """Returns what is wrong with two thresholds; None if they can be used."""
    if 0 <= c_low < c_high <= 1:
        return None
    return f"c_low {c_low:g} and c_high {c_high:g}: give 0 <= c_low < c_high <= 1, such as 0.1 and 0.9"


def is_sure(confidence: Confidence, thresholds: CascadeThresholds) -> bool:
    """Returns whether the local model's answer is good enough: every score must be certain."""
    certain = confidence.scores >= np.float32(thresholds.c_high)
    if confidence.two_sided:
        certain |= confidence.scores <= np.float32(thresholds.c_low)
    return bool(certain.all())
