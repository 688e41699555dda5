"""The frames of a run that were not sent: their number, their latency and the age of reused results."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.logs.run_log import NOT_SENT, ORIGINS, frames_not_sent
from analysis.report.data.answered_frames import column_values, timed_results
from analysis.statistics.bootstrap import Floats
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import percentiles

_SENT, _NO_RESULT = "sent", "neither sent nor answered"


@dataclass(frozen=True, slots=True)
class OriginSummary:
    """The frames whose results have one origin; latencies are NaN if the sample is too small."""

    origin: str  # worker, reused or local.
    outcome: str
    frames: int
    share: float  # Share of the frames read.
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Savings:
    """What was saved by not sending frames."""

    inferences: int  # Inferences that workers did not run.
    bytes_each: float  # Mean size of an answered frame and its result; NaN if no frame was answered by a worker.

    @property
    def bytes_total(self) -> float:
        """The bytes that these frames and their results would have had, estimated from those that were sent."""
        return self.inferences * self.bytes_each


def origin_summaries(frames: pd.DataFrame) -> list[OriginSummary]:
    """Summarises the total latency by the origin of the result; origins without frames are left out."""
    results = timed_results(frames)
    found = []
    for outcome, origin in ORIGINS.items():
        count = int((frames["outcome"] == outcome).sum())
        totals = column_values(results[results["outcome"] == outcome], "total_ms")
        if count:
            p50, p95, p99 = percentiles(totals, (50, 95, 99))
            found.append(OriginSummary(origin, outcome.value, count, count / len(frames), p50, p95, p99))
    return found


def savings(frames: pd.DataFrame) -> Savings:
    """Returns what was saved by the frames that were not sent."""
    answered = frames[frames["outcome"] == Outcome.ANSWERED]
    bytes_each = (
        float((answered["bytes_up"] + answered["bytes_down"]).astype(float).mean()) if len(answered) else np.nan
    )
    return Savings(len(frames_not_sent(frames)), bytes_each)


def fates(frames: pd.DataFrame) -> pd.Series:
    """Returns for each frame whether its result was reused or local, or whether it was sent."""
    sent = pd.Series(np.where(column_values(frames, "attempts") > 0, _SENT, _NO_RESULT), frames.index)
    return sent.mask(frames["outcome"].isin(NOT_SENT), frames["outcome"].str.replace("_", " "))


def reuse_ages(frames: pd.DataFrame) -> tuple[Floats, Floats]:
    """Returns the ages of the reused results, in frames of the camera that the gate compared, and in milliseconds.

    Both are counted from the frame whose result was reused, the time by the clock of the source, as the gate limits them.
    Reused frames are left out if that frame has no row.
    """
    is_gated = frames["t_gated_ns"].notna() & frames["source_ns"].notna()
    gated = frames[is_gated].sort_values("sequence").drop_duplicates("sequence")
    places = gated.groupby("camera").cumcount().set_axis(gated["sequence"])
    source_ns = gated["source_ns"].set_axis(gated["sequence"])
    reused = gated[(gated["outcome"] == Outcome.REUSED) & gated["reused_sequence"].isin(gated["sequence"])]
    sequences, sources = reused["sequence"].to_numpy(np.int64), reused["reused_sequence"].to_numpy(np.int64)
    age_frames = places[sequences].to_numpy(np.float64) - places[sources].to_numpy(np.float64)
    age_ns = source_ns[sequences].to_numpy(np.int64) - source_ns[sources].to_numpy(np.int64)
    return age_frames, age_ns / 1e6
