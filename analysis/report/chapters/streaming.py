"""Streaming accuracy: how right the outputs were for their own tick, of one run or of several."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from analysis.report.chapters.traces import axis, axis_from_zero, line
from analysis.report.content import (
    Caution,
    Chapter,
    ChapterPart,
    Chart,
    KeyFigure,
    Paragraph,
    ReportTable,
    TableRow,
    Trace,
)  # fmt: skip
from analysis.report.output.number_format import number
from analysis.report.stage_styles import DASHES, SERIES, TOTAL_COLOUR
from analysis.statistics.bootstrap import Floats
from analysis.statistics.description import IntervalEstimate
from analysis.streaming.run_accuracy import RunAccuracy
from analysis.streaming.tick_outputs import TickOutput
from edge.presenting.flow import FlowSize
from modelling.evaluation.streaming import AGE_EDGES_MS, ScoredTicks, joined
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin

TITLE = "Streaming accuracy"
_HELD, _CEILING = "newest held", "ceiling"
_FROM_WORKERS = "workers only"
_HOLD = "hold"  # The presenter that moves nothing.
_DIGITS = 3
_NS_IN_S = 1e9


def chapter(accuracy: RunAccuracy) -> Chapter:
    """Returns the streaming accuracy of one run."""
    paragraphs = (Paragraph(_introduction(accuracy)), Paragraph(_counting(accuracy)))
    notes = map(Paragraph, filter(None, [accuracy.note]))
    parts: list[ChapterPart] = [*paragraphs, *notes, *map(Caution, accuracy.cautions)]
    parts += [_summary_table(accuracy), _age_chart(accuracy), _timeline(accuracy), _origin_table(accuracy)]
    if accuracy.presenter not in ("", _HOLD):
        parts.append(_movement_table(accuracy))
        if not any(tick.origin in (OutputOrigin.WARPED, OutputOrigin.FUSED) for tick in accuracy.ticks):
            parts.append(Caution(f"The presenter {accuracy.presenter} moved no output of this run."))
    if accuracy.missing:
        rows = tuple(accuracy.missing.items())
        parts.append(ReportTable("streaming_missing", "Ticks without an output.", ("reason", "ticks"), rows))
    parts += [_age_table(accuracy), _class_table(accuracy)]
    return Chapter("streaming", TITLE, tuple(parts))


def comparison(accuracies: Sequence[RunAccuracy]) -> Chapter:
    """Compares the streaming accuracy of several runs."""
    metric = accuracies[0].comparison.metric
    groups: dict[tuple[str, str, tuple[str, ...]], list[RunAccuracy]] = {}
    for each in accuracies:
        groups.setdefault((each.comparison.metric, each.presenter, each.outputs.names), []).append(each)
    rows = [_run_row(each.run, [each]) for each in accuracies]
    rows += [
        _run_row(f"all {len(runs)} runs, {presenter or 'without a presenter'}", runs)
        for (_, presenter, _), runs in groups.items()
        if len(runs) > 1
    ]
    headings = (
        "run", "presenter", "ticks", metric, f"{metric}, all ticks", "held", "ceiling", "age p50 ms", "age p95 ms",
        "without output %",
    )  # fmt: skip
    caption = (
        f"{_opening(metric)} of the outputs against the labels of their own tick, with 95 % intervals: of one run over blocks of "
        "ticks, of several over runs. All ticks: those without an output count as wrong. Held: what holding the newest "
        "result would have given. Held and ceiling also count the local model's results that were given in place of a worker's."
    )
    digits = dict.fromkeys((metric, f"{metric}, all ticks", "held", "ceiling"), _DIGITS)
    digits |= {"age p50 ms": 0, "age p95 ms": 0, "without output %": 1}
    cautions = [Caution(f"{each.run}: {text}") for each in accuracies for text in each.cautions]
    if any(1 < len(runs) > len({each.truth for each in runs}) for runs in groups.values()):
        caption += " Runs of one recording are repetitions: their interval says nothing of other drives."
    table = ReportTable("streaming_runs", caption, headings, rows, digits)
    notes = [Paragraph(f"{each.run}: {each.note}") for each in accuracies if each.note]
    return Chapter("streaming", TITLE, (*notes, *cautions, table, _runs_chart(accuracies)))


def key_figures(accuracy: RunAccuracy) -> tuple[KeyFigure, ...]:
    """Returns the accuracy for the top of the report."""
    value, ceiling = accuracy.outputs.accuracy(), accuracy.ceiling.accuracy()
    note = f"{accuracy.comparison.metric} at every tick; {number(ceiling, _DIGITS)} without any delay"
    return (KeyFigure("streaming accuracy", number(value, _DIGITS), note),)


def streaming_json(accuracy: RunAccuracy) -> dict[str, Any]:
    """Returns the streaming accuracy of a run as plain data with intervals."""
    candidates = {"outputs": accuracy.outputs, "held": accuracy.held, "ceiling": accuracy.ceiling}
    if accuracy.held_from_workers is not None:
        candidates |= {"held_from_workers": accuracy.held_from_workers, "ceiling_from_workers": _from_workers(accuracy)}
    return {
        "presenter": accuracy.presenter or None,
        "truth": str(accuracy.truth),
        **accuracy.comparison.compared(),
        "metric": accuracy.comparison.metric,
        "ticks": len(accuracy.ticks),
        "scored": len(accuracy.scored),
        "unscored": dict(accuracy.unscored),
        "missing": accuracy.missing,
        "origins": {
            origin: {"ticks": count, "accuracy": accuracy.outputs.where(_of_origin(origin)).accuracy()}
            for origin, count in accuracy.outputs.origins().items()
        },
        "age_ms": dict(zip(("p50", "p95"), _p50_p95(accuracy.outputs.ages_ms()), strict=True)),
        **{
            name: {
                "accuracy": accuracy.interval(scores),
                "accuracy_all_ticks": accuracy.interval(scores, with_missing=True),
                "by_class": scores.by_class(),
            }
            for name, scores in candidates.items()
        },
        "by_age": [
            {"from_ms": edge, "ticks": len(scores.ticks), "accuracy": accuracy.interval(scores)}
            for edge, scores in accuracy.outputs.by_age().items()
        ],
        "cautions": list(accuracy.cautions),
    }  # fmt: skip


def _introduction(accuracy: RunAccuracy) -> str:
    value = accuracy.outputs.accuracy()
    what = f"outputs of the presenter {accuracy.presenter}" if accuracy.presenter else "newest result that had arrived"
    return (
        f"At every tick, which is a camera frame at the time at which it is due, the {what} is compared with the true labels "
        f"of that same tick, because a vehicle acts on the present: {accuracy.comparison.metric} {number(value, _DIGITS)}. The "
        f"ceiling of {number(accuracy.ceiling.accuracy(), _DIGITS)} is what the same results would be worth if they took no time."
    )


def _counting(accuracy: RunAccuracy) -> str:
    """Says which ticks and results are counted, and when."""
    text = (
        f"Every frame that was read is a tick, also one that was dropped. At a tick, {_HELD} is the result of the latest frame "
        "among the results that the vehicle had decoded when the tick was due, whatever its age; a result that missed its "
        "deadline does not count, and a reused result counts for the frame that reused it."
    )
    if accuracy.held_from_workers is None:
        return text
    total, remote = len(accuracy.ceiling.ticks), len(_from_workers(accuracy).ticks)
    return (
        f"{text} Of the {total:,} results of the ceiling, {total - remote:,} are those of the local model, logged as "
        f'answered_locally; {_HELD} and {_CEILING} count them like a worker\'s, and the rows "{_FROM_WORKERS}" leave them '
        "out. The results of the local model that the presenter combines at a tick are part of its own outputs only."
    )


def _from_workers(accuracy: RunAccuracy) -> ScoredTicks[Any]:
    """Returns the part of the ceiling that is not from the local model."""
    return accuracy.ceiling.where(lambda tick: tick.origin != OutputOrigin.LOCAL)


def _candidates(accuracy: RunAccuracy) -> Iterator[tuple[str, ScoredTicks[Any]]]:
    """Yields the candidates that the tables and charts compare, with their names."""
    if accuracy.presenter:
        yield f"presented ({accuracy.presenter})", accuracy.outputs
    yield _HELD, accuracy.held
    if accuracy.held_from_workers is not None:
        yield f"{_HELD}, {_FROM_WORKERS}", accuracy.held_from_workers
    yield _CEILING, accuracy.ceiling
    if accuracy.held_from_workers is not None:
        yield f"{_CEILING}, {_FROM_WORKERS}", _from_workers(accuracy)


def _summary_table(accuracy: RunAccuracy) -> ReportTable:
    metric = accuracy.comparison.metric
    rows: list[TableRow] = []
    for name, scores in _candidates(accuracy):
        missing = sum(tick.is_missing for tick in scores.ticks)
        estimates = (accuracy.interval(scores), accuracy.interval(scores, with_missing=True))
        rows.append((name, len(scores.ticks), missing, *estimates, *_p50_p95(scores.ages_ms())))
    caption = (
        f"{_opening(metric)} with its 95 % interval for this run. All ticks: those without an output count too, with everything in "
        "them missed. Newest held: what holding the newest result would have given. Ceiling: each result for its own frame, "
        "only of frames with a result."
    )
    headings = ("what", "ticks", "without output", metric, f"{metric}, all ticks", "age p50 ms", "age p95 ms")
    digits = {metric: _DIGITS, f"{metric}, all ticks": _DIGITS, "age p50 ms": 0, "age p95 ms": 0}
    return ReportTable("streaming", caption, headings, rows, digits)


def _origin_table(accuracy: RunAccuracy) -> ReportTable:
    rows: list[TableRow] = []
    for origin, count in accuracy.outputs.origins().items():
        scores = accuracy.outputs.where(_of_origin(origin))
        ages = _p50_p95(scores.ages_ms())
        rows.append((origin, count, 100 * count / len(accuracy.outputs.ticks), scores.accuracy(), *ages))
    metric = accuracy.comparison.metric
    headings = ("origin of the output", "ticks", "share %", metric, "age p50 ms", "age p95 ms")
    digits = {metric: _DIGITS, "share %": 1, "age p50 ms": 0, "age p95 ms": 0}
    caption = "What the outputs of the scored ticks were made of. A local output has the age 0."
    return ReportTable("streaming_origins", caption, headings, rows, digits)


def _movement_table(accuracy: RunAccuracy) -> ReportTable:
    counts = Counter(_movement(tick) for tick in accuracy.ticks if tick.source is not None)
    rows = tuple((output, count, 100 * count / counts.total(), why) for (output, why), count in counts.most_common())
    headings = ("output", "ticks", "share %", "how, or why not")
    caption = f"Outputs that were moved to their tick, and why others were not, from {PRESENTED_NAME}."
    return ReportTable("streaming_movement", caption, headings, rows, {"share %": 1})


def _movement(tick: TickOutput) -> tuple[str, str]:
    """Returns whether an output was moved, and how, or why not."""
    if tick.flow == FlowSize.NONE:
        return "not moved", "no optical flow: no time for it, images too small, or a gap since the frame of the result"
    if tick.flow:
        return "moved", f"by optical flow, computed at a {tick.flow} of the size"
    if tick.origin is OutputOrigin.LOCAL and not tick.age_ns:
        return "not moved", "by the local model alone: no result of a worker, or only one that is too old to be fused"
    return "not moved", "the result of the tick's own frame had arrived"


def _age_table(accuracy: RunAccuracy) -> ReportTable:
    candidates = [(name, scores.by_age()) for name, scores in _candidates(accuracy) if not name.startswith(_CEILING)]
    edges = sorted({edge for _, bins in candidates for edge in bins})
    rows: list[TableRow] = []
    for edge in edges:
        row: list[Any] = [_bin_text(edge)]
        for _, bins in candidates:
            found = bins.get(edge)
            row += [len(found.ticks) if found else 0, accuracy.interval(found) if found else None]
        rows.append(tuple(row))
    columns = list(chain.from_iterable((f"{name}: ticks", name) for name, _ in candidates))
    metric = accuracy.comparison.metric
    caption = (
        f"{_opening(metric)} by the age of the output: the time from the frame that it was computed for to the tick."
    )
    return ReportTable("streaming_ages", caption, ("age ms", *columns), rows, {name: _DIGITS for name, _ in candidates})


def _class_table(accuracy: RunAccuracy) -> ReportTable:
    candidates = [(name, scores.by_class()) for name, scores in _candidates(accuracy)]
    names = dict.fromkeys(name for _, by_class in candidates for name in by_class)
    rows = tuple((name, *(by_class.get(name) for _, by_class in candidates)) for name in names)
    headings = ("class", *(name for name, _ in candidates))
    caption = f"{_opening(accuracy.comparison.by_class)} of each class in the true labels."
    return ReportTable("streaming_classes", caption, headings, rows, dict.fromkeys(headings[1:], _DIGITS))


def _age_chart(accuracy: RunAccuracy) -> Chart:
    traces: list[Trace] = []
    for index, (name, scores) in enumerate(_candidates(accuracy)):
        if name.startswith(_CEILING):
            continue
        bins = [(float(np.mean(each.ages_ms())), accuracy.interval(each)) for each in scores.by_age().values()]
        traces.append(_with_intervals(name, [age for age, _ in bins], [each for _, each in bins], index))
    ends = [
        min((min(trace["x"]) for trace in traces if trace["x"]), default=0.0),
        *(max(trace["x"], default=0.0) for trace in traces),
    ]
    ceiling = accuracy.ceiling.accuracy()
    style = {"color": TOTAL_COLOUR, "dash": "dot", "width": 1.5}
    traces.append(line("ceiling", [min(0.0, *ends), max(ends)], [ceiling, ceiling], style, "ceiling %{y:.3f}"))
    metric = accuracy.comparison.metric
    caption = (
        f"{_opening(metric)} against the age of the output, mean of each age bin, with 95 % intervals where the ticks suffice. The dotted "
        f"line is the ceiling, {number(ceiling, _DIGITS)}."
    )
    layout = {"xaxis": axis_from_zero("age of the output at its tick, ms"), "yaxis": axis_from_zero(metric)}
    return Chart("streaming_by_age", caption, tuple(traces), layout, height=340)


def _timeline(accuracy: RunAccuracy) -> Chart:
    """Shows the accuracy of each second, which an outage lowers, and the share of ticks without an output."""
    due_s = np.array([(tick.due_ns or 0) / _NS_IN_S for tick in accuracy.scored])
    seconds = np.floor(due_s - due_s.min()).astype(int) if len(due_s) else np.empty(0, int)
    kind = type(accuracy.outputs)
    values, ages = [], []
    present = np.unique(seconds)
    for second in present:
        ticks = [accuracy.outputs.ticks[index] for index in np.flatnonzero(seconds == second)]
        scores = kind(accuracy.outputs.names, ticks)
        values.append(scores.accuracy(with_missing=True))
        ages.append(float(np.mean(scores.ages_ms())) if any(not tick.is_missing for tick in ticks) else np.nan)
    metric = accuracy.comparison.metric
    traces = (
        line(metric, present, values, {"color": SERIES[0], "width": 1.8}, f"{metric} %{{y:.3f}} in second %{{x}}"),
        line(
            "age",
            present,
            ages,
            {"color": SERIES[1], "width": 1.5, "dash": DASHES[1]},
            "age %{y:.0f} ms in second %{x}",
        )
        | {"yaxis": "y2"},
    )
    layout = {
        "xaxis": axis("time since the first scored tick, s"),
        "yaxis": axis_from_zero(f"{metric}, all ticks"),
        "yaxis2": axis_from_zero("mean age, ms", overlaying="y", side="right", showgrid=False, tickmode="auto"),
        "margin": {"r": 64},
    }
    lowest = f"{number(min(values), _DIGITS)} to {number(max(values), _DIGITS)}" if values else "no tick"
    caption = f"{_opening(metric)} of each second of the run ({lowest}), and the mean age of its outputs. Ticks without an output count as wrong."
    return Chart("streaming_over_time", caption, traces, layout, height=300)


def _runs_chart(accuracies: Sequence[RunAccuracy]) -> Chart:
    names = [each.run for each in accuracies]
    candidates: Mapping[str, list[IntervalEstimate]] = {
        "outputs": [each.interval(each.outputs) for each in accuracies],
        "held": [each.interval(each.held) for each in accuracies],
        "ceiling": [each.interval(each.ceiling) for each in accuracies],
    }
    traces = tuple(
        _with_intervals(name, names, estimates, index) | {"mode": "markers"}
        for index, (name, estimates) in enumerate(candidates.items())
    )
    metric = accuracies[0].comparison.metric
    means = {each.run: each.outputs.accuracy(with_missing=True) for each in accuracies if len(each.outputs.ages_ms())}
    best = max(means, key=lambda run: means[run], default="")
    caption = (
        f"{_opening(metric)} of each run's outputs, of holding its newest result, and its ceiling, with 95 % intervals for each run."
        + (f" Best: {best}, {number(means[best], _DIGITS)} over all ticks." if best else "")
    )
    layout = {"xaxis": axis("run", type="category"), "yaxis": axis_from_zero(metric)}
    return Chart("streaming_runs", caption, traces, layout, height=340)


def _run_row(name: str, runs: Sequence[RunAccuracy]) -> TableRow:
    outputs, held, ceiling = (joined([getattr(run, which) for run in runs]) for which in ("outputs", "held", "ceiling"))
    interval = runs[0].interval
    missing = sum(tick.is_missing for tick in outputs.ticks)
    return (
        name, runs[0].presenter or "none", len(outputs.ticks), interval(outputs), interval(outputs, with_missing=True),
        interval(held), interval(ceiling), *_p50_p95(outputs.ages_ms()),
        100 * missing / len(outputs.ticks) if outputs.ticks else np.nan,
    )  # fmt: skip


def _with_intervals(name: str, x: Sequence[Any], estimates: Sequence[IntervalEstimate], index: int) -> Trace:
    """Returns a line with error bars; a value without an interval has no bar."""
    colour = SERIES[index]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": [each.value for each in estimates],
        "line": {"color": colour, "dash": DASHES[index], "width": 1.5}, "marker": {"color": colour, "size": 8},
        "error_y": error_bars(estimates, colour), "hovertemplate": f"{name}: %{{y:.3f}} at %{{x}}<extra></extra>",
    }  # fmt: skip


def error_bars(estimates: Sequence[IntervalEstimate], colour: str) -> Trace:
    """Returns the bars of a trace's values; a value without an interval has none."""
    upper = [float(np.nan_to_num(each.high - each.value)) for each in estimates]
    lower = [float(np.nan_to_num(each.value - each.low)) for each in estimates]
    return {"type": "data", "array": upper, "arrayminus": lower, "color": colour, "thickness": 1.2}


def _of_origin(origin: str) -> Any:
    return lambda tick: tick.origin == origin


def _p50_p95(ages_ms: Floats) -> tuple[float, float]:
    if not len(ages_ms):
        return np.nan, np.nan
    p50, p95 = np.percentile(ages_ms, (50, 95))
    return float(p50), float(p95)


def _opening(metric: str) -> str:
    """Returns the name of a metric as the begin of a sentence."""
    return metric[0].upper() + metric[1:]


def _bin_text(edge: float) -> str:
    later = [each for each in AGE_EDGES_MS if each > edge]
    return f"{edge:g} to {later[0]:g}" if later else f"from {edge:g}"
