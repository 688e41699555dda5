"""The same frames in two samples, side by side."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.statistics.bootstrap import Floats
from bench.statistics.certainty import Series


@dataclass(frozen=True, slots=True)
class Pairs:
    """The frames that are in both samples, in the order of the first, and how the runs of each side lie to the other."""

    a: Floats
    b: Floats
    difference: Series  # b - a, frame by frame.
    runs_a: Series  # What the other side's frame took more than this run's, run by run.
    runs_b: Series  # What this run's frame took more than the other side's.


def rows_of(values: pd.Series, keys: pd.Series | None, runs: pd.Series | None) -> pd.DataFrame:
    """The values that are numbers, in their order: columns value, run, and (where there are keys) key and nth.

    `runs`: None where all values are of one; `nth`: a bag that is played again and again has a frame several times in
    one run.
    """
    rows = pd.DataFrame({"value": values.to_numpy(np.float64, na_value=np.nan)})
    rows["run"] = 0 if runs is None else runs.to_numpy()
    if keys is not None:
        rows["key"] = keys.to_numpy()
        rows["nth"] = rows.groupby(["run", "key"], sort=False).cumcount()
    return rows[np.isfinite(rows["value"])]


def pair(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> Pairs | None:
    """Pair the rows of two samples; None where they have no keys, or less than half of the smaller side's are in both.

    A frame that several runs of a side answered counts with their mean.
    """
    if "key" not in rows_a or "key" not in rows_b:
        return None
    a, b = (rows.groupby(["key", "nth"], sort=False)["value"].mean() for rows in (rows_a, rows_b))
    both = a.to_frame("a").join(b.to_frame("b"), how="inner")
    if not 2 * len(both) >= min(len(a), len(b)) > 0:
        return None
    beside_a, beside_b = (rows.join(both, on=["key", "nth"], how="inner") for rows in (rows_a, rows_b))
    return Pairs(
        both["a"].to_numpy(),
        both["b"].to_numpy(),
        Series.of([(both["b"] - both["a"]).to_numpy()]),
        by_run(beside_a["b"] - beside_a["value"], beside_a["run"]),
        by_run(beside_b["value"] - beside_b["a"], beside_b["run"]),
    )


def by_run(values: pd.Series, runs: pd.Series) -> Series:
    """Values as a series of their runs."""
    return Series.of([run.to_numpy(np.float64) for _, run in values.groupby(runs, sort=False)])
