"""Two sides of a few independent figures each, such as the utilisation of runs: how far their means lie apart."""

from dataclasses import dataclass

import numpy as np

from bench.statistics.bootstrap import Floats
from bench.statistics.certainty import Error
from bench.statistics.description import Estimate


@dataclass(frozen=True, slots=True)
class Means:
    """b against a; nan where a side has fewer than two figures, or none of them differ."""

    mean_a: float
    mean_b: float
    difference: Estimate  # With its interval of 95 %, by Student's t.
    welch_p: float


def compare_means(a: Floats, b: Floats) -> Means:
    """Welch's t-test of two sides whose figures are independent: a run each, not the frames or samples of one.

    SciPy's `ttest_ind(equal_var=False)`. Figures that are nan were not measured and are left out.
    """
    known_a, known_b = (side[np.isfinite(side)] for side in (a, b))
    mean_a, mean_b = (float(side.mean()) if len(side) else np.nan for side in (known_a, known_b))
    if min(len(known_a), len(known_b)) < 2:  # noqa: PLR2004  One has no variance.
        return Means(mean_a, mean_b, Estimate(mean_b - mean_a), np.nan)
    parts = [float(side.var(ddof=1)) / len(side) for side in (known_a, known_b)]
    error = Error.welch(parts, [len(known_a) - 1, len(known_b) - 1])
    return Means(mean_a, mean_b, error.around(mean_b - mean_a), error.p_value(mean_b - mean_a))
