"""What fresh results are to reach, and whether they do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.freshness.drive_replay import CEILING, HOLD, LOCAL

WARP, FUSE = "warp", "fuse"
LEAST_AT_200_MS: Final = {WARP: 0.58, FUSE: 0.66}  # Streaming mean IoU of a camera of 10 Hz.
LEAST_RECOVERED: Final = {WARP: 0.50, FUSE: 0.75}  # Of the distance between hold and the ceiling, at 200 ms.
# Dedelayed (arXiv 2510.13714): mean IoU over local only and over remote only, on BDD100K at 100 ms.
DEDELAYED: Final = {LOCAL: 0.064, HOLD: 0.098}

_JUDGED_AGE_MS = 200


def targets(ages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns each target with the value reached; `ages` as in the JSON of the bench."""
    return [*_at_judged_age(ages), *_fuse_is_best(ages)]


def recovered(case: Mapping[str, Any], name: str) -> float:
    """Returns the share of the distance between hold and the ceiling that a candidate recovers."""
    value, low, high = (case["candidates"][each]["mean_iou"]["value"] for each in (name, HOLD, CEILING))
    return float((value - low) / (high - low)) if high != low else float("nan")


def _at_judged_age(ages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    case = next(case for case in ages if case["age_ms"] == _JUDGED_AGE_MS)
    for name in (WARP, FUSE):
        if name not in case["candidates"]:
            continue
        estimate = case["candidates"][name]["mean_iou"]
        yield _target(f"{name} at {_JUDGED_AGE_MS} ms: mean IoU", LEAST_AT_200_MS[name], **estimate)
        share = recovered(case, name)
        yield _target(f"{name} at {_JUDGED_AGE_MS} ms: share of hold to ceiling", LEAST_RECOVERED[name], value=share)


def _fuse_is_best(ages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields, for every age, the margin of fuse over the better of local only and warp."""
    for case in ages:
        if FUSE not in case["candidates"] or WARP not in case["candidates"]:
            continue
        better = max((LOCAL, WARP), key=lambda name: case["candidates"][name]["mean_iou"]["value"])
        yield _target(f"fuse − {better} at {case['age_ms']} ms", 0.0, **case["margins"][FUSE][better])


def _target(
    name: str, least: float, *, value: float, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"name": name, "least": least, "value": value, "low": low, "high": high, "is_met": value >= least}
