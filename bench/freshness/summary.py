"""Summarises the scores of all drives: accuracy with intervals, margins, classes, and the course of an outage."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import accuracy_interval, margin_interval, recovered_interval
from bench.freshness.arrivals import NS_PER_MS
from bench.freshness.drive_replay import (
    AGES_MS,
    CEILING,
    HOLD,
    LINKS,
    LOCAL,
    OUTAGE,
    OUTAGE_LINK,
    OUTAGE_S,
    RATE_HZ,
    Scores,
    age_case,
    outage_frames,
)
from modelling.evaluation.streaming import StreamingScores

_BASELINES: Final = (LOCAL, HOLD, "warp")  # The candidates that margins are computed over.


def merged(drives: Sequence[Mapping[str, Scores]]) -> dict[str, Scores]:
    """Joins the ticks of all drives, by case and candidate."""
    return {
        case: {
            name: StreamingScores(first.names, [tick for drive in drives for tick in drive[case][name].ticks])
            for name, first in candidates.items()
        }
        for case, candidates in drives[0].items()
    }


def summarise(cases: Mapping[str, Scores]) -> dict[str, Any]:
    """Returns the JSON of all cases; `cases` without the outage has no chapter of it."""
    found = {
        "ages": [{"age_ms": age_ms, **_case(cases[age_case(age_ms)])} for age_ms in AGES_MS],
        "links": [{"link": link, **_case(cases[link])} for link in LINKS],
    }
    return found | ({"outage": _outage(cases[OUTAGE])} if OUTAGE in cases else {})


def _case(scores: Scores) -> dict[str, Any]:
    return {
        "ticks": len(scores[CEILING].ticks),
        "age_of_result_ms": _ages(scores[HOLD]),
        "candidates": {name: _candidate(each) for name, each in scores.items()},
        "margins": {
            name: {
                baseline: estimate_record(margin_interval(each, scores[baseline], with_missing=True))
                for baseline in _BASELINES
                if baseline in scores and baseline != name
            }
            for name, each in scores.items()
        },
        "recovered": {
            name: estimate_record(recovered_interval(each, scores[HOLD], scores[CEILING]))
            for name, each in scores.items()
            if name not in (HOLD, CEILING)
        },
    }


def _candidate(scores: StreamingScores) -> dict[str, Any]:
    """Describes a candidate; ticks without an output count as wrong."""
    return {
        "mean_iou": estimate_record(accuracy_interval(scores, with_missing=True)),
        "iou_by_class": {name: round(iou, 4) for name, iou in scores.iou_by_class().items()},
        "origins": scores.origins(),
        "by_drive": {drive: _number(each.mean_iou(with_missing=True)) for drive, each in scores.by_drive().items()},
    }


def _ages(held: StreamingScores) -> dict[str, float | None]:
    """Returns the age of the newest result at the ticks that have one."""
    ages_ms = [tick.age_ns / NS_PER_MS for tick in held.ticks if tick.age_ns is not None]
    return {key: float(np.percentile(ages_ms, share)) if ages_ms else None for key, share in (("p50", 50), ("p95", 95))}


def _outage(scores: Scores) -> dict[str, Any]:
    """Describes the whole outage, and every second of the drive."""
    last = outage_frames() // RATE_HZ
    first = (outage_frames() - len(next(iter(scores[HOLD].by_drive().values())).ticks)) // RATE_HZ
    seconds = {second: _between(scores, second, second + 1) for second in range(first, last)}
    return {
        "link": OUTAGE_LINK,
        "begin_s": OUTAGE_S[0],
        "end_s": OUTAGE_S[1],
        "seconds": [
            {
                "from_s": second,
                "mean_iou": {name: _number(each.mean_iou(with_missing=True)) for name, each in parts.items()},
                "origins": {name: each.origins() for name, each in parts.items()},
            }
            for second, parts in seconds.items()
        ],
        "within": {name: _candidate(each) for name, each in _between(scores, *OUTAGE_S).items()},
    }


def _between(scores: Scores, begin_s: int, end_s: int) -> Scores:
    """Returns the ticks of each drive from `begin_s` to `end_s`; scored ticks end with the drive."""

    def part(each: StreamingScores) -> StreamingScores:
        ticks = []
        for drive in each.by_drive().values():
            first = outage_frames() - len(drive.ticks)
            ticks += drive.ticks[max(0, begin_s * RATE_HZ - first) : end_s * RATE_HZ - first]
        return StreamingScores(each.names, ticks)

    return {name: part(each) for name, each in scores.items()}


def estimate_record(estimate: IntervalEstimate) -> dict[str, float | None]:
    """Returns an estimate for JSON; None for what is not defined."""
    return {key: _number(value) for key, value in asdict(estimate).items()}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
