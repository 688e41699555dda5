"""The slope of samples over time that single jumps do not move."""

from collections.abc import Sequence

import numpy as np

_MOST_SAMPLES = 1000  # Half a million pairs; of more, as many that lie evenly among them.


def slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """The median slope of all pairs of samples (Theil 1950, Sen 1968), in units of `values` a unit of `times`.

    None for fewer than two moments.
    """
    if len(times) < 2:  # noqa: PLR2004 (a slope is of two points)
        return None
    chosen = np.linspace(0, len(times) - 1, min(len(times), _MOST_SAMPLES)).round().astype(int)
    at, level = np.asarray(times, float)[chosen], np.asarray(values, float)[chosen]
    first, second = np.triu_indices(len(at), k=1)
    apart = at[second] - at[first]
    rises = (level[second] - level[first])[apart > 0] / apart[apart > 0]
    return float(np.median(rises)) if len(rises) else None
