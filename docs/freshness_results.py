"""The comparison of presenters in docs/results/freshness.md: its tables and its charts. `make freshness` measures it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.report.chapters.traces import axis, axis_from_zero
from analysis.report.content import Chart
from analysis.report.output.number_format import number
from bench.freshness.freshness_bench import DEDELAYED, FUSE, WARP
from bench.freshness.replay import CEILING, EVERY, LOCAL
from bench.harness import interval_verdict, verdict_text
from shared.runlog.presented_log import HOLD

_FINE = "warp-fine"
_STYLES: dict[str, dict[str, Any]] = {
    CEILING: {"color": "#6b6b6b", "dash": "dot"},
    FUSE: {"color": "#b5480f", "width": 3},
    WARP: {"color": "#ee8421"},
    _FINE: {"color": "#f2b134"},
    LOCAL: {"color": "#2f7d6b", "dash": "dash"},
    HOLD: {"color": "#2c6fb0"},
    EVERY: {"color": "#8f8f8f", "dash": "dashdot"},
}
_TITLES = {CEILING: "without a delay", LOCAL: "local model only", EVERY: "every 3rd frame, held"}
_LINKS = {"none": "none", "5g": "5G-like", "4g": "4G-like"}
_CLASSES_AT_MS = 200
_DEDELAYED_AT_MS = 100

Result = Mapping[str, Any]  # The JSON of the bench.


def blocks(result: Result) -> dict[str, Iterator[str]]:
    """Returns the lines of each block of the page."""
    return {
        **_tables("ages", "age of the results", [(f"{case['age_ms']} ms", case) for case in result["ages"]]),
        "margins": _margins(result),
        "targets": _targets(result),
        **_tables("links", "link", [(_link(case), case) for case in result["links"]]),
        "outage": _outage(result["outage"]),
        "live": _live(result.get("live", [])),
        "classes": _classes(next(case for case in result["ages"] if case["age_ms"] == _CLASSES_AT_MS)),
    }


def charts(result: Result) -> tuple[Chart, ...]:
    """Returns the charts of the page."""
    return _age_chart(result["ages"]), _outage_chart(result["outage"])


def summary(result: Result) -> str:
    """Returns the accuracy of each presenter at one age, in one sentence."""
    case = next(case for case in result["ages"] if case["age_ms"] == _CLASSES_AT_MS)
    made, ready = (_values(each) for each in (case, case["at_tick"]))
    return (
        f"On synthetic drives, masks that are {_CLASSES_AT_MS} ms old have a mean IoU of {ready[HOLD]} at the tick if they are held, "
        f"{ready[WARP]} if they are warped, and {ready[FUSE]} if they are fused with the local model's, which alone reaches "
        f"{ready[LOCAL]}. For the tick, it is {made[WARP]} if they are warped, {made[FUSE]} if they are fused, and {made[LOCAL]} "
        f"with the local model alone. Without any delay it would be {made[CEILING]} ({_n(result, case)})."
    )


def real_blocks(perfect: Result, network: Result) -> dict[str, Iterator[str]]:
    """Returns the lines of the blocks about a real drive, with perfect results and with those of a network."""
    case = _nearest(perfect)
    return {
        **_tables("real-perfect", "age of the results", [(f"{each['age_ms']} ms", each) for each in perfect["ages"]]),
        **_tables("real-network", "age of the results", [(f"{each['age_ms']} ms", each) for each in network["ages"]]),
        "real-classes": _classes(case),
    }


def real_summary(perfect: Result, network: Result) -> str:
    """Returns the accuracy on a real drive, in one paragraph."""
    drive = perfect["real_drives"][0]
    case, of_network = _nearest(perfect), _nearest(network)
    made, ready = (_values(each) for each in (case, case["at_tick"]))
    others, others_ready = (_values(each) for each in (of_network, of_network["at_tick"]))
    return (
        f"On a real drive (CamVid 0016E5: one drive, {drive['labelled']} labelled frames at {number(drive['rate_hz'], 0)} Hz), masks "
        f"that are {case['age_ms']} ms old and were perfect have a mean IoU of {ready[HOLD]} at the tick if they are held, and "
        f"{ready[WARP]} if they are warped ({ready[_FINE]} with `warp-fine`). For the tick, warped ones have {made[WARP]} "
        f"({made[_FINE]} with `warp-fine`). With a real network, which reaches only {others[CEILING]} on this drive without any "
        f"delay, it is {others_ready[HOLD]} held and {others_ready[WARP]} warped at the tick, and {others[WARP]} warped for the "
        "tick (95 % intervals over blocks of the one drive)."
    )


def _values(case: Mapping[str, Any]) -> dict[str, str]:
    return {name: _with_interval(each["mean_iou"]) for name, each in case["candidates"].items()}


def _nearest(result: Result) -> Mapping[str, Any]:
    return min(result["ages"], key=lambda case: abs(int(case["age_ms"]) - _CLASSES_AT_MS))


def _n(result: Result, case: Mapping[str, Any]) -> str:
    return f"{len(result['drives'])} drives, {case['ticks']} ticks, 95 % intervals over the drives"


def _tables(block: str, heading: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Iterator[str]]:
    """Returns the lines of the tables of both measures."""
    at_tick = [(label, {**case, **case["at_tick"]}) for label, case in rows]
    return {f"{block}-at-tick": _table(heading, at_tick), f"{block}-for-tick": _table(heading, rows)}


def _table(heading: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    names = [name for name in _STYLES if name in rows[0][1]["candidates"]]
    yield f"| {heading} | " + " | ".join(_title(name) for name in names) + " | ticks |"
    yield "| --- |" + " ---: |" * (len(names) + 1)
    for label, case in rows:
        cells = [_with_interval(case["candidates"][name]["mean_iou"], "<br>") for name in names]
        yield f"| {label} | " + " | ".join(cells) + f" | {case['ticks']} |"


def _margins(result: Result) -> Iterator[str]:
    names = {LOCAL: "over the local model only", HOLD: "over holding remote results"}
    yield "".join(
        f"| {text}, {measure} " for measure in ("at the tick", "for the tick") for text in names.values()
    ).join(("| ", "|"))
    yield "| --- | ---: | ---: | ---: | ---: |"
    for case in result["ages"]:
        cells = [_points(each["margins"][FUSE][name]) for each in (case["at_tick"], case) for name in names]
        yield f"| fuse, {case['age_ms']} ms | " + " | ".join(cells) + " |"
    dedelayed = (f"{100 * DEDELAYED[name]:+.1f}" for name in names)
    yield f"| Dedelayed, {_DEDELAYED_AT_MS} ms (BDD100K) | | | " + " | ".join(dedelayed) + " |"


def _targets(result: Result) -> Iterator[str]:
    yield "| target | least | reached | |"
    yield "| --- | ---: | ---: | --- |"
    for target in result["targets"]:
        least, value = number(target["least"], 2), _with_interval(target)
        is_met = target["is_met"]  # Of a count; an estimate is judged by its interval.
        if target["low"] is not None:
            by_interval = interval_verdict(target["low"], target["high"], least=target["least"])
            if by_interval is False or is_met is True:  # Else other margins decide, too.
                is_met = by_interval
        yield f"| {target['name']} | {least} | {value} | {verdict_text(is_met)} |"


def _outage(outage: Mapping[str, Any]) -> Iterator[str]:
    names = [name for name in _STYLES if name in outage["within"]]
    yield "| | " + " | ".join(_title(name) for name in names) + " |"
    yield "| --- |" + " ---: |" * len(names)
    for measure, part in (("at the tick", outage["at_tick"]), ("for the tick", outage)):
        within = [part["within"][name] for name in names]
        yield (
            f"| mean IoU {measure} | " + " | ".join(_with_interval(each["mean_iou"], "<br>") for each in within) + " |"
        )
        yield f"| outputs {measure} by origin | " + " | ".join(_origins(each["origins"]) for each in within) + " |"


def _live(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| presenter | drives | ticks | live, for the tick | replayed | | ready after due, p50 / p95 | live, at the tick |"
    yield "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |"
    for run in runs:
        live, replayed = number(run["live"], 3), _with_interval(run["replayed"])
        verdict = "confirmed" if run["is_confirmed"] else "**not confirmed**"
        after = " / ".join(number(run["after_due_ms"][key], 0) for key in ("median", "p95"))
        at_tick = number(run["live_at_tick"], 3)
        cells = [run["presenter"], run["drives"], run["ticks"], live, replayed, verdict, f"{after} ms", at_tick]
        yield f"| {' | '.join(map(str, cells))} |"


def _classes(case: Mapping[str, Any]) -> Iterator[str]:
    candidates = {name: case["candidates"][name] for name in _STYLES if name in case["candidates"]}
    yield "| class | " + " | ".join(map(_title, candidates)) + " |"
    yield "| --- |" + " ---: |" * len(candidates)
    for label in sorted(candidates[CEILING]["iou_by_class"]):
        cells = [number(each["iou_by_class"].get(label, float("nan")), 3) for each in candidates.values()]
        yield f"| {label} | " + " | ".join(cells) + " |"


def _age_chart(ages: Sequence[Mapping[str, Any]]) -> Chart:
    """Shows the streaming mean IoU at the tick of each candidate by the age of the results, with intervals."""
    cases = [case["at_tick"] for case in ages]
    traces = []
    for name, style in _STYLES.items():
        found = [case["candidates"][name]["mean_iou"] for case in cases if name in case["candidates"]]
        if not found:
            continue
        values = [each["value"] for each in found]
        ends = {"array": [each["high"] - each["value"] for each in found] if found[0]["high"] else []}
        ends["arrayminus"] = [each["value"] - each["low"] for each in found] if found[0]["low"] else []
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _title(name),
                "x": [case["age_ms"] for case in ages],
                "y": values,
                "line": style,
                "marker": {"size": 7},
                "error_y": {"type": "data", "symmetric": False, "thickness": 1, "width": 4, **ends},
            }
        )
    layout = {
        "xaxis": axis_from_zero("age of the results, ms"),
        "yaxis": axis("streaming mean IoU at the tick", range=[0.2, 0.9]),
    }
    return Chart("results-freshness", "Streaming mean IoU at the tick by the age of the results", tuple(traces), layout)


def _outage_chart(outage: Mapping[str, Any]) -> Chart:
    """Shows the streaming mean IoU for the tick in every second of the drives with an outage."""
    begin_s, end_s = outage["begin_s"], outage["end_s"]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": _title(name),
            "x": [second["from_s"] + 0.5 for second in outage["seconds"]],
            "y": [second["mean_iou"][name] for second in outage["seconds"]],
            "line": style,
        }
        for name, style in _STYLES.items()
        if name in outage["within"] and name != EVERY
    ]
    shade = {"type": "rect", "xref": "x", "yref": "paper", "x0": begin_s, "x1": end_s, "y0": 0, "y1": 1}
    layout = {
        "xaxis": axis("time, s (shaded: no link)"),
        "yaxis": axis_from_zero("streaming mean IoU for the tick"),
        "shapes": [{**shade, "fillcolor": "#e6e8eb", "line": {"width": 0}, "layer": "below"}],
    }
    return Chart(
        "results-freshness-outage",
        "Streaming mean IoU for the tick through an outage",
        tuple(traces),
        layout,
        height=320,
    )


def _title(name: str) -> str:
    return _TITLES.get(name, name)


def _link(case: Mapping[str, Any]) -> str:
    age_ms = case["age_of_result_ms"]
    return f"{_LINKS[case['link']]} (results {number(age_ms['p50'], 0)} ms old, p95 {number(age_ms['p95'], 0)})"


def _origins(origins: Mapping[str, int]) -> str:
    total = sum(origins.values())
    return "<br>".join(f"{name} {number(100 * count / total, 0)} %" for name, count in origins.items())


def _with_interval(estimate: Mapping[str, Any], separator: str = " ") -> str:
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return number(float("nan"))
    return number(value, 3) + ("" if low is None else f"{separator}({number(low, 3)} to {number(high, 3)})")


def _points(estimate: Mapping[str, Any]) -> str:
    value, low, high = (None if estimate[key] is None else 100 * estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return number(float("nan"))
    return f"{value:+.1f}" + ("" if low is None else f" ({low:+.1f} to {high:+.1f})")
