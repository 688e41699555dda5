"""The targets of fresh results, and the check of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.freshness.drive_replay import HOLD, LOCAL
from shared.runlog.presented_log import OutputOrigin

WARP, FUSE = "warp", "fuse"
LEAST_AT_200_MS: Final = {WARP: 0.58, FUSE: 0.66}  # Streaming mean IoU of a camera of 10 Hz.
LEAST_RECOVERED: Final = {WARP: 0.50, FUSE: 0.75}  # Share of the distance between hold and the ceiling, at 200 ms.
# Dedelayed (arXiv 2510.13714): mean IoU over local only and over remote only, on BDD100K at 100 ms.
DEDELAYED: Final = {LOCAL: 0.064, HOLD: 0.098}

_JUDGED_AGE_MS = 200


def targets(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns each target with the value reached; `summary` as in the JSON of the bench."""
    ages = summary["ages"]
    return [*_at_judged_age(ages), *_fuse_is_best(ages), *_in_outage(summary.get("outage"))]


def _at_judged_age(ages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    case = next(case for case in ages if case["age_ms"] == _JUDGED_AGE_MS)
    for name in (WARP, FUSE):
        if name not in case["candidates"]:
            continue
        estimate = case["candidates"][name]["mean_iou"]
        yield _target(f"{name} at {_JUDGED_AGE_MS} ms: mean IoU", LEAST_AT_200_MS[name], **estimate)
        share = case["recovered"][name]
        yield _target(f"{name} at {_JUDGED_AGE_MS} ms: share of hold to ceiling", LEAST_RECOVERED[name], **share)


def _fuse_is_best(ages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields, for every age, the margin of fuse over the better of local only and warp."""
    for case in ages:
        if FUSE not in case["candidates"] or WARP not in case["candidates"]:
            continue
        better = max((LOCAL, WARP), key=lambda name: case["candidates"][name]["mean_iou"]["value"])
        yield _target(f"fuse − {better} at {case['age_ms']} ms", 0.0, **case["margins"][FUSE][better])


def _in_outage(outage: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields the share of ticks without a link that have an output."""
    if outage is None or FUSE not in outage["within"]:
        return
    origins = outage["within"][FUSE]["origins"]
    share = 1 - origins.get(OutputOrigin.NONE, 0) / sum(origins.values())
    yield _target("fuse without a link: share of ticks with an output", 1.0, value=share)


def _target(
    name: str, least: float, *, value: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"name": name, "least": least, "value": value, "low": low, "high": high, "is_met": value >= least}
