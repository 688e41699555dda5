"""The frames of a log that got a result, by the origin of that result, and the times of their results."""

from typing import Final

import pandas as pd

from shared.runlog.latency_log import WITH_RESULT, Outcome

ORIGINS: Final = {  # The outcomes with a result, and the origin of that result.
    Outcome.ANSWERED: "worker",
    Outcome.REUSED: "reused",
    Outcome.ANSWERED_LOCALLY: "local",
}
NOT_SENT: Final = tuple(outcome for outcome in ORIGINS if outcome is not Outcome.ANSWERED)


def frames_with_result(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames that got a result in time, of any origin."""
    return frames[frames["outcome"].isin(WITH_RESULT)]


def frames_not_sent(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames that got a result without being sent."""
    return frames[frames["outcome"].isin(NOT_SENT)]


def result_times_ns(frames: pd.DataFrame) -> pd.Series:
    """Returns the time at which each frame got its result, as Int64; <NA> for a frame without a total."""
    totals_ns = (frames["total_ms"].astype("float64") * 1e6).round().astype("Int64")
    return frames["t_due_ns"].astype("Int64") + totals_ns
