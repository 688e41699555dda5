"""Two sides of a few independent figures each, such as the utilisation of runs: how far their means lie apart."""

import math
from dataclasses import dataclass

import numpy as np

from bench.statistics.bootstrap import Floats
from bench.statistics.certainty import Error
from bench.statistics.description import Estimate


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of one side: how many, their mean, and their standard deviation, nan of fewer than two."""

    count: int
    mean: float
    std: float

    @classmethod
    def of(cls, known: Floats) -> "Group":
        """Of figures that are numbers."""
        mean = float(known.mean()) if len(known) else math.nan
        return cls(len(known), mean, float(known.std(ddof=1)) if len(known) > 1 else math.nan)


@dataclass(frozen=True, slots=True)
class Means:
    """b against a; nan where a side has fewer than two figures, or none of them differ."""

    a: Group
    b: Group
    difference: Estimate  # Of the means, with its interval of 95 %, by Student's t.
    welch_p: float


def compare_means(a: Floats, b: Floats) -> Means:
    """Welch's t-test of two sides whose figures are independent: a run each, not the frames or samples of one.

    SciPy's `ttest_ind(equal_var=False)`. Figures that are nan were not measured and are left out.
    """
    of_a, of_b = sides = [Group.of(side[np.isfinite(side)]) for side in (a, b)]
    difference = of_b.mean - of_a.mean
    if min(side.count for side in sides) < 2:  # noqa: PLR2004  One has no variance.
        return Means(of_a, of_b, Estimate(difference), math.nan)
    error = Error.welch([side.std**2 / side.count for side in sides], [side.count - 1 for side in sides])
    return Means(of_a, of_b, error.around(difference), error.p_value(difference))
