"""Streaming accuracy, at the tick and for the tick: how right the outputs of one run or of several were for the present."""

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
from shared.runlog.presented_log import HOLD, PRESENTED_NAME, OutputOrigin

TITLE = "Streaming accuracy"
AT_TICK, FOR_TICK = "at the tick", "for the tick"
MEASURES = (
    "At the tick counts the newest output that was ready when the tick was due, whatever tick it was made for; a held result is ready "
    "when it arrives. For the tick counts the output that was made for it, however long after the tick was due it was ready."
)
_HELD, _CEILING = "newest held", "ceiling"
_FROM_WORKERS = "workers only"
_AFTER_DUE = ("after due p50 ms", "after due p95 ms")
_DIGITS = 3
_NS_IN_S = 1e9


def chapter(accuracy: RunAccuracy) -> Chapter:
    """Returns the streaming accuracy of one run."""
    paragraphs = (Paragraph(_introduction(accuracy)), Paragraph(_counting(accuracy)))
    notes = map(Paragraph, filter(None, [accuracy.note]))
    parts: list[ChapterPart] = [*paragraphs, *notes, *map(Caution, accuracy.cautions)]
    parts += [_summary_table(accuracy), _age_chart(accuracy), _timeline(accuracy), _origin_table(accuracy)]
    if accuracy.presenter not in ("", HOLD):
        parts.append(_movement_table(accuracy))
        if not any(tick.origin in (OutputOrigin.WARPED, OutputOrigin.FUSED) for tick in accuracy.ticks):
            parts.append(Caution(f"The presenter {accuracy.presenter} moved no output of this run."))
    if accuracy.missing:
        rows = tuple(accuracy.missing.items())
        parts.append(ReportTable("streaming_missing", "Ticks for which no output was made.", ("reason", "ticks"), rows))
    parts += [_age_table(accuracy), _class_table(accuracy)]
    return Chapter("streaming", TITLE, tuple(parts))


def comparison(accuracies: Sequence[RunAccuracy]) -> Chapter:
    """Compares the streaming accuracy of several runs."""
    metric = accuracies[0].comparison.metric
    groups: dict[tuple[str, str, tuple[str, ...]], list[RunAccuracy]] = {}
    for each in accuracies:
        groups.setdefault((each.comparison.metric, each.presenter, each.at_tick.names), []).append(each)
    rows = [_run_row(each.run, [each]) for each in accuracies]
    rows += [
        _run_row(f"all {len(runs)} runs, {presenter or 'without a presenter'}", runs)
        for (_, presenter, _), runs in groups.items()
        if len(runs) > 1
    ]
    headings = (
        "run", "presenter", "ticks", AT_TICK, f"{AT_TICK}, all ticks", FOR_TICK, *_AFTER_DUE, "held", "ceiling", "age p50 ms",
        "age p95 ms", "without output %",
    )  # fmt: skip
    caption = (
        f"{_opening(metric)} with 95 % intervals: of one run over blocks of ticks, of several over runs. {MEASURES} All ticks: those "
        "without an output count as wrong. Held: what holding the newest result would have given at the tick. Age and share without "
        "output are those at the tick. Held and ceiling also count the local model's results that were given in place of a worker's."
    )
    digits = dict.fromkeys((AT_TICK, f"{AT_TICK}, all ticks", FOR_TICK, "held", "ceiling"), _DIGITS)
    digits |= {"age p50 ms": 0, "age p95 ms": 0, "without output %": 1} | dict.fromkeys(_AFTER_DUE, 0)
    cautions = [Caution(f"{each.run}: {text}") for each in accuracies for text in each.cautions]
    if any(1 < len(runs) > len({each.truth for each in runs}) for runs in groups.values()):
        caption += " Runs of one recording are repetitions: their interval says nothing of other drives."
    table = ReportTable("streaming_runs", caption, headings, rows, digits)
    notes = [Paragraph(f"{each.run}: {each.note}") for each in accuracies if each.note]
    return Chapter("streaming", TITLE, (*notes, *cautions, table, _runs_chart(accuracies)))


def key_figures(accuracy: RunAccuracy) -> tuple[KeyFigure, ...]:
    """Returns the accuracy for the top of the report."""
    note = f"{accuracy.comparison.metric}; {number(accuracy.ceiling.accuracy(), _DIGITS)} without any delay"
    if accuracy.for_tick is not None:
        note += f"; {number(accuracy.for_tick.accuracy(), _DIGITS)} {FOR_TICK}, {_after_due(accuracy)}"
    return (KeyFigure(f"streaming accuracy, {AT_TICK}", number(accuracy.at_tick.accuracy(), _DIGITS), note),)


def _after_due(accuracy: RunAccuracy) -> str:
    """Says how late the outputs of a presenter were."""
    p50, p95 = (number(value, 0) for value in _p50_p95(accuracy.after_due_ms))
    return f"ready {p50} ms after due (p50; p95 {p95} ms)"


def streaming_json(accuracy: RunAccuracy) -> dict[str, Any]:
    """Returns the streaming accuracy of a run as plain data with intervals."""
    candidates = {"at_tick": accuracy.at_tick, "held": accuracy.held, "ceiling": accuracy.ceiling}
    if accuracy.for_tick is not None:
        candidates |= {"for_tick": accuracy.for_tick}
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
            origin: {"ticks": count, "accuracy": accuracy.at_tick.where(_of_origin(origin)).accuracy()}
            for origin, count in accuracy.at_tick.origins().items()
        },
        "age_ms": dict(zip(("p50", "p95"), _p50_p95(accuracy.at_tick.ages_ms()), strict=True)),
        "after_due_ms": dict(zip(("p50", "p95"), _p50_p95(accuracy.after_due_ms), strict=True)),
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
            for edge, scores in accuracy.at_tick.by_age().items()
        ],
        "cautions": list(accuracy.cautions),
    }  # fmt: skip


def _introduction(accuracy: RunAccuracy) -> str:
    metric, value = accuracy.comparison.metric, number(accuracy.at_tick.accuracy(), _DIGITS)
    what = "output" if accuracy.for_tick is not None else "result"
    text = (
        "A tick is a camera frame at the time at which it is due. Outputs are compared with the true labels of the tick, because a "
        f"vehicle acts on the present. {_opening(AT_TICK)}, with the newest {what} that was ready when the tick was due, the "
        f"{metric} is {value}."
    )
    if accuracy.for_tick is not None:
        text += (
            f" {_opening(FOR_TICK)}, with the output that the presenter {accuracy.presenter} made for it, it is "
            f"{number(accuracy.for_tick.accuracy(), _DIGITS)}; these outputs were {_after_due(accuracy)}."
        )
    ceiling = number(accuracy.ceiling.accuracy(), _DIGITS)
    return f"{text} The ceiling of {ceiling} is what the same results would be worth if they took no time."


def _counting(accuracy: RunAccuracy) -> str:
    """Says which ticks and results are counted, and when."""
    text = (
        f"Every frame that was read is a tick, also one that was dropped. An output stays the newest one until a later one is ready: "
        f"a tick for which none was made withdraws nothing. At a tick, {_HELD} is the result of the latest frame among the results that the vehicle had decoded when the tick was due, whatever its age; a result that missed its "
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
        yield f"presented ({accuracy.presenter}), {AT_TICK}", accuracy.at_tick
    if accuracy.for_tick is not None:
        yield f"presented ({accuracy.presenter}), {FOR_TICK}", accuracy.for_tick
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
        after_due = _p50_p95(accuracy.after_due_ms if scores is accuracy.for_tick else np.empty(0))
        rows.append((name, len(scores.ticks), missing, *estimates, *_p50_p95(scores.ages_ms()), *after_due))
    caption = (
        f"{_opening(metric)} with its 95 % interval for this run. {MEASURES} All ticks: those without an output count too, with "
        "everything in them missed. Newest held: what holding the newest result would have given at the tick. Ceiling: each result "
        "for its own frame, only of frames with a result. After due: how much later than its tick an output was ready."
    )
    headings = (
        "what",
        "ticks",
        "without output",
        metric,
        f"{metric}, all ticks",
        "age p50 ms",
        "age p95 ms",
        *_AFTER_DUE,
    )
    digits = {metric: _DIGITS, f"{metric}, all ticks": _DIGITS, "age p50 ms": 0, "age p95 ms": 0} | dict.fromkeys(
        _AFTER_DUE, 0
    )
    return ReportTable("streaming", caption, headings, rows, digits)


def _origin_table(accuracy: RunAccuracy) -> ReportTable:
    rows: list[TableRow] = []
    for origin, count in accuracy.at_tick.origins().items():
        scores = accuracy.at_tick.where(_of_origin(origin))
        ages = _p50_p95(scores.ages_ms())
        rows.append((origin, count, 100 * count / len(accuracy.at_tick.ticks), scores.accuracy(), *ages))
    metric = accuracy.comparison.metric
    headings = ("origin of the output", "ticks", "share %", metric, "age p50 ms", "age p95 ms")
    digits = {metric: _DIGITS, "share %": 1, "age p50 ms": 0, "age p95 ms": 0}
    caption = f"What the outputs {AT_TICK} were made of, of the scored ticks."
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
    caption = f"{_opening(metric)} by the age of the output: the time from the frame that its result was computed for to the tick."
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
    values, ages = [], []
    present = np.unique(seconds)
    for second in present:
        ticks = [accuracy.at_tick.ticks[index] for index in np.flatnonzero(seconds == second)]
        scores = accuracy.at_tick.of(ticks)
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
    caption = f"{_opening(metric)} {AT_TICK}, by second of the run ({lowest}), and the mean age of its outputs. Ticks without an output count as wrong."
    return Chart("streaming_over_time", caption, traces, layout, height=300)


def _runs_chart(accuracies: Sequence[RunAccuracy]) -> Chart:
    names = [each.run for each in accuracies]
    candidates: Mapping[str, list[IntervalEstimate]] = {
        AT_TICK: [each.interval(each.at_tick) for each in accuracies],
        "held": [each.interval(each.held) for each in accuracies],
        "ceiling": [each.interval(each.ceiling) for each in accuracies],
    }
    traces = tuple(
        _with_intervals(name, names, estimates, index) | {"mode": "markers"}
        for index, (name, estimates) in enumerate(candidates.items())
    )
    metric = accuracies[0].comparison.metric
    means = {each.run: each.at_tick.accuracy(with_missing=True) for each in accuracies if len(each.at_tick.ages_ms())}
    best = max(means, key=lambda run: means[run], default="")
    caption = (
        f"{_opening(metric)} of each run's outputs {AT_TICK}, of holding its newest result, and its ceiling, with 95 % intervals for "
        "each run." + (f" Best {AT_TICK}: {best}, {number(means[best], _DIGITS)} over all ticks." if best else "")
    )
    layout = {"xaxis": axis("run", type="category"), "yaxis": axis_from_zero(metric)}
    return Chart("streaming_runs", caption, traces, layout, height=340)


def _run_row(name: str, runs: Sequence[RunAccuracy]) -> TableRow:
    at_tick, held, ceiling = (joined([getattr(run, which) for run in runs]) for which in ("at_tick", "held", "ceiling"))
    made = [run.for_tick for run in runs if run.for_tick is not None]
    interval = runs[0].interval
    missing = sum(tick.is_missing for tick in at_tick.ticks)
    return (
        name, runs[0].presenter or "none", len(at_tick.ticks), interval(at_tick), interval(at_tick, with_missing=True),
        interval(joined(made)) if made else None, *_p50_p95(np.concatenate([run.after_due_ms for run in runs])),
        interval(held), interval(ceiling), *_p50_p95(at_tick.ages_ms()),
        100 * missing / len(at_tick.ticks) if at_tick.ticks else np.nan,
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
