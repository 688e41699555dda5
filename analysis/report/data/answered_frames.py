"""The frames of a run that got a result, and the stage durations of those that a worker answered."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.logs.run_log import RunLog, frames_with_result
from analysis.statistics.bootstrap import Floats
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS, parts_of
from shared.stages import OPTIONAL_STAGES

TIME_AXIS_TITLE: Final = "time since the first frame was due, s"
_SPLIT_CROSSING: Final = ("uplink", "downlink")
_MAX_POINTS: Final = 1500


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """The frames of a run or of a study's cell that got a result, in time order within each run."""

    name: str
    results: pd.DataFrame  # Frames with a result of any origin: a worker's, a reused one, or the local model's.
    runs: pd.Series | None = None  # The run (in a study: the block) of each result; None if all are of one run.
    result_share: float = np.nan  # Share of the read frames that got a result; NaN if unknown.

    @classmethod
    def of_run(cls, run: RunLog) -> "FrameGroup":
        """Returns the frames of a run that got a result."""
        results = timed_results(run.frames)
        return cls(run.name, results, result_share=len(results) / len(run.frames) if len(run.frames) else np.nan)

    @property
    def answered(self) -> pd.DataFrame:
        """The frames answered by a worker, which have the durations of all its stages."""
        return self.results[self.results["outcome"] == Outcome.ANSWERED] if len(self.results) else self.results


def answered_frames(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames answered by a worker with all stage durations, in the order they were due."""
    results = timed_results(frames)
    return results[results["outcome"] == Outcome.ANSWERED]


def timed_results(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames with a result and a total, in the order they were due.

    Frames answered by a worker have all stage durations.
    """
    durations = [f"{part}_ms" for part in PARTS]
    is_complete = (frames["outcome"] != Outcome.ANSWERED) | frames[durations].notna().all(axis=1)
    timed = frames_with_result(frames[is_complete & frames["total_ms"].notna()])
    return timed.sort_values("t_due_ns", kind="stable")


def parts_in(frames: pd.DataFrame) -> tuple[str, ...]:
    """Returns the stages that every frame answered by a worker passes, and the optional ones that any of `frames` passed."""
    passed = [stage for stage in OPTIONAL_STAGES if np.isfinite(column_values(frames, f"{stage}_ms")).any()]
    return tuple(map(str, parts_of(passed)))


def part_durations(frames: pd.DataFrame, part: str) -> Floats:
    """Returns the duration of a stage of each frame in milliseconds; 0 if a frame did not pass an optional stage."""
    durations = column_values(frames, f"{part}_ms")
    return np.nan_to_num(durations, nan=0.0) if part in OPTIONAL_STAGES else durations


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
    parts = {part: part_durations(frames, part) for part in parts_in(frames)}
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
