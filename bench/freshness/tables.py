"""Prints the result of the bench."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.freshness.drive_replay import CEILING, HOLD, LOCAL
from bench.freshness.targets import DEDELAYED, FUSE
from bench.harness.output import interval_text
from shared.terminal_table import Table, result_table

_CLASSES_AT_MS: Final = 200
_DEDELAYED_AT_MS: Final = 100


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the tables and lines of a result."""
    drives = len(result["drives"])
    ages, links = result["ages"], result["links"]
    yield _accuracy_table(
        f"Streaming mean IoU by the age of results, {drives} drives",
        [(f"{case['age_ms']} ms", case) for case in ages],
    )
    yield (
        "Each output against the labels of its own tick, 95 % intervals over the drives. ceiling: the remote model "
        "without a delay. 33 ms: a camera of 30 Hz; the others: 10 Hz."
    )
    yield _accuracy_table(
        f"Streaming mean IoU over links, {result['plan']['inference_ms']:g} ms an inference",
        [(f"{case['link']}\n{_span(case['age_of_result_ms'])}", case) for case in links],
    )
    yield "Below a link: median and 95th percentile of the age of the newest result, ms."
    yield _class_table(next(case for case in ages if case["age_ms"] == _CLASSES_AT_MS))
    if "outage" in result:
        yield _outage_table(result["outage"], result["outage_drives"])
        yield "Second 0: start of the drive. A tick without an output counts as wrong. local: of the ticks of the last column."
    if FUSE in ages[0]["candidates"]:
        yield from _margin_lines(ages)
    yield from map(_live_line, result.get("live", ()))
    for target in result["targets"]:
        interval = "" if target["low"] is None else f" ({target['low']:.3f} to {target['high']:.3f})"
        verdict = interval_text(*(target[key] for key in ("is_met", "least", "value", "low", "high")))
        yield f"{target['name']}: {target['value']:.3f}{interval}, target ≥ {target['least']:g}: {verdict}"


def _accuracy_table(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    names = list(rows[0][1]["candidates"])
    return result_table(
        title,
        {"results": "<", **dict.fromkeys(names, "")},
        [(label, *(_estimate(case["candidates"][name]["mean_iou"]) for name in names)) for label, case in rows],
    )


def _class_table(case: Mapping[str, Any]) -> Table:
    candidates = case["candidates"]
    classes = sorted(candidates[CEILING]["iou_by_class"])
    return result_table(
        f"IoU by class at {case['age_ms']} ms",
        {"class": "<", **dict.fromkeys(candidates, ".3f")},
        [(name, *(each["iou_by_class"].get(name) for each in candidates.values())) for name in classes],
    )


def _outage_table(outage: Mapping[str, Any], drives: int) -> Table:
    names = list(outage["within"])
    rows = []
    for second in outage["seconds"]:
        origins = second["origins"][names[-1]]
        rows.append(
            (
                str(second["from_s"]),
                "cut" if outage["begin_s"] <= second["from_s"] < outage["end_s"] else "",
                *(second["mean_iou"][name] for name in names),
                f"{100 * origins.get('local', 0) / sum(origins.values()):.0f} %",
            )
        )
    columns = {"s": "", "link": "<", **dict.fromkeys(names, ".3f"), "local": ""}
    return result_table(f"Streaming mean IoU through an outage, {drives} drives", columns, rows)


def _margin_lines(ages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for case in ages:
        margins = case["margins"][FUSE]
        text = ", ".join(f"{_points(margins[name])} over {name}" for name in (LOCAL, HOLD))
        beside = "; Dedelayed on BDD100K: " + ", ".join(
            f"{100 * points:+.1f} over {name}"
            for name, points in (("local only", DEDELAYED[LOCAL]), ("remote only", DEDELAYED[HOLD]))
        )
        yield f"fuse at {case['age_ms']} ms, points: {text}{beside if case['age_ms'] == _DEDELAYED_AT_MS else ''}"


def _live_line(live: Mapping[str, Any]) -> str:
    return (
        f"{live['presenter']} live, {live['drives']} drives, {live['ticks']} ticks: {live['live']:.3f}; replayed with the "
        f"same results: {_estimate(live['replayed'], ' ')}: {'confirmed' if live['is_confirmed'] else 'NOT confirmed'}"
    )


def _points(estimate: Mapping[str, float | None]) -> str:
    value, low, high = (None if each is None else 100 * each for each in estimate.values())
    return f"{value:+.1f}" if low is None else f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def _estimate(estimate: Mapping[str, float | None], separator: str = "\n") -> str:
    value, low, high = estimate.values()
    if value is None:
        return "–"
    ends = [f"{end:.2f}".lstrip("0") for end in (low, high) if end is not None]
    return separator.join([f"{value:.3f}", *(["–".join(ends)] if ends else [])])


def _span(ages_ms: Mapping[str, float | None]) -> str:
    return " / ".join("–" if each is None else f"{each:.0f}" for each in ages_ms.values())
