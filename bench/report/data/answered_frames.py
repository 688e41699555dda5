"""The answered frames of a run, and what their journeys are made of."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

Floats = npt.NDArray[np.float64]
SPLIT: Final = ("uplink", "downlink")  # What `crossing` is where the clocks are known well enough.
TIME_AXIS_TITLE: Final = "time since the first frame was due, s"  # The axis of what is shown over time.
_MIDDLE: Final = (0.45, 0.55)
_MOST_POINTS: Final = 1500


def answered_frames(frames: pd.DataFrame) -> pd.DataFrame:
    """The frames that were answered and whose whole journey was measured, in the order they were due."""
    durations = [f"{part}_ms" for part in (*PARTS, "total")]
    known = frames[(frames["outcome"] == Outcome.ANSWERED) & frames[durations].notna().all(axis=1)]
    return known.sort_values("t_due_ns", kind="stable")


def column_values(frames: pd.DataFrame, name: str) -> Floats:
    """A column as floats, nan where it was not measured or does not exist."""
    if name not in frames:
        return np.full(len(frames), np.nan)
    return np.asarray(frames[name].to_numpy(np.float64, na_value=np.nan), np.float64)


def seconds_since(frames: pd.DataFrame, name: str, since_ns: int) -> Floats:
    """A column of stamps as seconds since one, subtracted as whole numbers: a float of 1970's nanoseconds is coarse."""
    stamps = frames[name]
    known = stamps.notna().to_numpy()
    out = np.full(len(frames), np.nan)
    out[known] = (stamps[known].to_numpy(np.int64) - since_ns) / 1e9
    return out


def first_due_ns(frames: pd.DataFrame) -> int:
    """When the first frame was due; 0 where none has a stamp."""
    due = frames["t_due_ns"].dropna()
    return int(due.min()) if len(due) else 0


def downsampled(rows: pd.DataFrame) -> pd.DataFrame:
    """At most 1,500 of the rows, evenly taken: a line has no more places than that on a screen."""
    return rows if len(rows) <= _MOST_POINTS else rows.iloc[np.linspace(0, len(rows) - 1, _MOST_POINTS).astype(int)]


def frames_near_median(frames: pd.DataFrame) -> pd.DataFrame:
    """The frames about the median: those whose total lies from the 45th to the 55th percentile."""
    totals = frames["total_ms"]
    low = totals.quantile(_MIDDLE[0], interpolation="lower")
    high = totals.quantile(_MIDDLE[1], interpolation="higher")
    return frames[totals.between(low, high)]


def mean_durations(frames: pd.DataFrame) -> dict[str, float]:
    """The mean time of each part, milliseconds, in the order of a journey; they sum to the mean total.

    The crossing is split into uplink and downlink where every frame knows them and neither mean is below 0, as a wrong
    clock could make them.
    """
    parts = {str(part): float(column_values(frames, f"{part}_ms").mean()) for part in PARTS}
    up, down = (float(column_values(frames, f"{side}_ms").mean()) for side in SPLIT)
    if not (up >= 0 and down >= 0):
        return parts
    split: dict[str, float] = {}
    for part, mean in parts.items():
        if part == "mask_decoded":
            split["downlink"] = down
        split["uplink" if part == "crossing" else part] = up if part == "crossing" else mean
    return split


def frame_name(vehicle: str, camera: str, sequence: int) -> str:
    """What a frame is called in the report."""
    return f"{vehicle} {camera} #{sequence}"
