"""The answered frames of a run and their stage durations."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog
from bench.statistics.bootstrap import Floats
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

TIME_AXIS_TITLE: Final = "time since the first frame was due, s"
_SPLIT_CROSSING: Final = ("uplink", "downlink")
_MAX_POINTS: Final = 1500


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """The answered frames of a run or of a study's cell, in time order within each run."""

    name: str
    frames: pd.DataFrame
    runs: pd.Series | None = None  # The run (in a study: the block) of each frame; None if all are of one run.
    answered_share: float = np.nan  # Share of the read frames that were answered; NaN if unknown.

    @classmethod
    def of_run(cls, run: RunLog) -> "FrameGroup":
        """Returns the answered frames of a run."""
        frames = answered_frames(run.frames)
        return cls(run.name, frames, answered_share=len(frames) / len(run.frames) if len(run.frames) else np.nan)


def answered_frames(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the answered frames with all stage durations, in the order they were due."""
    durations = [f"{part}_ms" for part in (*PARTS, "total")]
    complete = frames[(frames["outcome"] == Outcome.ANSWERED) & frames[durations].notna().all(axis=1)]
    return complete.sort_values("t_due_ns", kind="stable")


def column_values(frames: pd.DataFrame, name: str) -> Floats:
    """Returns a column as floats; NaN where it was not measured or does not exist."""
    if name not in frames:
        return np.full(len(frames), np.nan)
    return np.asarray(frames[name].to_numpy(np.float64, na_value=np.nan), np.float64)


def seconds_since(frames: pd.DataFrame, name: str, start_ns: int) -> Floats:
    """Returns a timestamp column as seconds since `start_ns`.

    The subtraction uses integers, because a float cannot hold nanoseconds since 1970 exactly.
    """
    stamps = frames[name]
    known = stamps.notna().to_numpy()
    out = np.full(len(frames), np.nan)
    out[known] = (stamps[known].to_numpy(np.int64) - start_ns) / 1e9
    return out


def first_due_ns(frames: pd.DataFrame) -> int:
    """Returns when the first frame was due; 0 if no frame has that timestamp."""
    due = frames["t_due_ns"].dropna()
    return int(due.min()) if len(due) else 0


def downsampled(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns at most 1,500 evenly spaced rows, which is enough for a line on a screen."""
    return rows if len(rows) <= _MAX_POINTS else rows.iloc[np.linspace(0, len(rows) - 1, _MAX_POINTS).astype(int)]


def frames_near_median(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames whose total lies between the 45th and the 55th percentile."""
    totals = frames["total_ms"]
    low, high = totals.quantile(0.45, interpolation="lower"), totals.quantile(0.55, interpolation="higher")
    return frames[totals.between(low, high)]


def mean_durations(frames: pd.DataFrame) -> dict[str, float]:
    """Returns the mean duration of each stage in milliseconds, in chronological order; they sum to the mean total.

    The crossing is split as in `stage_durations`.
    """
    return {stage: float(durations.mean()) for stage, durations in stage_durations(frames).items()}


def stage_durations(frames: pd.DataFrame) -> dict[str, Floats]:
    """Returns the duration of each stage of each frame in milliseconds, in chronological order.

    The crossing is split into uplink and downlink if every frame has both and neither mean is negative, which an
    inaccurate clock offset can cause.
    """
    parts = {str(part): column_values(frames, f"{part}_ms") for part in PARTS}
    up, down = (column_values(frames, f"{direction}_ms") for direction in _SPLIT_CROSSING)
    if not (up.mean() >= 0 and down.mean() >= 0):
        return parts
    split: dict[str, Floats] = {}
    for part, durations in parts.items():
        if part == "mask_decoded":
            split["downlink"] = down
        split["uplink" if part == "crossing" else part] = up if part == "crossing" else durations
    return split


def stage_intervals(frames: pd.DataFrame, start_ns: int) -> dict[str, tuple[Floats, Floats]]:
    """Returns the begin and the end of each stage of each frame, in seconds since `start_ns`.

    The stages of a frame follow each other without gaps from the time it was due, so all times are on the vehicle's
    clock. If the crossing is not split into uplink and downlink, all of it comes before
    the worker's stages, which are then drawn too late by the duration of the downlink.
    """
    end = seconds_since(frames, "t_due_ns", start_ns)
    intervals = {}
    for stage, durations in stage_durations(frames).items():
        begin, end = end, end + durations / 1e3
        intervals[stage] = (begin, end)
    return intervals
