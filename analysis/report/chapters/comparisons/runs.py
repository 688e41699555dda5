"""Compares several runs or cells: differences of the total latency, distributions, and time by stage."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.report.chapters.run.distribution import SEED, STATISTICS, cumulative_chart
from analysis.report.chapters.run.stages import STAGES_TITLE
from analysis.report.chapters.traces import STACKED_LAYOUT, axis, axis_from_zero, not_measured, points, stage_bar
from analysis.report.content import Chapter, ChapterPart, Chart, Paragraph, ReportTable, TableRow, join_words
from analysis.report.data.answered_frames import FrameGroup, column_values, part_durations, parts_in
from analysis.report.output.number_format import milliseconds, probability
from analysis.report.stage_styles import TOTAL_COLOUR
from analysis.statistics.comparison import LatencyComparison, LatencySample, compare_latencies
from analysis.statistics.description import describe
from shared.runlog.mean_interval import MIN_RUNS
from shared.runlog.percentiles import NOTE

MAX_CURVES = 12
_GROUPS_PER_TABLE = 5  # More do not fit on a page.
_HEADINGS = ("mean ms", "p25 ms", "p50 ms", "p75 ms", "p95 ms", "p99 ms", "p99.9 ms")


def compare_totals(pairs: Iterable[tuple[FrameGroup, FrameGroup]], *, in_blocks: bool) -> list[LatencyComparison]:
    """Compares the total latency of the second group with the first, for each pair.

    `in_blocks` means that the groups are cells of a study, whose repetitions are blocks.
    """
    samples = [
        tuple(LatencySample(group.name, group.results["total_ms"], group.runs) for group in pair) for pair in pairs
    ]
    return compare_latencies([(a, b) for a, b in samples], in_blocks=in_blocks)


def chapter(groups: Sequence[FrameGroup]) -> Chapter:
    """Compares every run with the first, without tests, as each one is a single run."""
    answered = [group for group in groups if len(group.results)]
    if len(answered) < 2:  # A comparison needs two runs.
        return not_measured("comparison", "Comparison", "fewer than two runs have frames with a result")
    found = compare_totals(((answered[0], other) for other in answered[1:]), in_blocks=False)
    parts = (*sentences(found), table(found, "comparison"), difference_chart(found, "differences"))
    return Chapter("comparison", "Comparison", parts)


def sentences(comparisons: Sequence[LatencyComparison]) -> tuple[ChapterPart, ...]:
    """Returns each comparison as a sentence."""
    return tuple(Paragraph(comparison.sentence) for comparison in comparisons)


def table(comparisons: Sequence[LatencyComparison], name: str) -> ReportTable:
    """Returns the differences with their intervals and verdicts."""
    rows = tuple(
        (
            each.b, each.a, f"{each.runs_b} and {each.runs_a}", each.difference, each.ratio, each.hedges_g,
            each.probability_b_lower, each.verdict, probability(each.p_value),
        )
        for each in comparisons
    )  # fmt: skip
    headings = ("compared", "baseline", "runs", "difference ms", "ratio", "Hedges' g", "P(lower)", "verdict", "p")
    caption = (
        "Differences of the runs' median totals from the baseline. Hedges' g: difference of the frames' means in standard "
        "deviations. P(lower): probability that a frame of the compared run is faster than a frame of the baseline. Both "
        f"describe these frames only. {describe_tests(each.method for each in comparisons)}"
    )
    return ReportTable(name, caption, headings, rows)


def describe_tests(methods: Iterable[str]) -> str:
    """Describes the tests on which the verdicts of a table are based."""
    used = [method for method in methods if method]
    if not used:
        return f"No test: a test needs at least {MIN_RUNS} runs of each."
    adjusted = f", adjusted for {len(used)} comparisons by Bonferroni's method" if len(used) > 1 else ""
    return f"Verdict: {join_words(list(dict.fromkeys(used)))} over the runs; 95 % intervals and p-values{adjusted}."


def difference_chart(comparisons: Sequence[LatencyComparison], name: str) -> Chart:
    """Shows each difference as a point with its interval."""
    labels = [f"{each.b}<br>vs. {each.a}" for each in comparisons]
    values = np.array([each.difference.value for each in comparisons])
    low, high = (np.array([getattr(each.difference, end) for each in comparisons]) for end in ("low", "high"))
    intervals = {
        "type": "data", "symmetric": False, "array": np.nan_to_num(high - values),
        "arrayminus": np.nan_to_num(values - low), "thickness": 2, "width": 6, "color": TOTAL_COLOUR,
    }  # fmt: skip
    symbols = ["circle" if known else "circle-open" for known in np.isfinite(low)]
    marker = {"size": 10, "color": TOTAL_COLOUR, "symbol": symbols}
    trace = points("difference", values, labels, marker, "%{x:.3f} ms", error_x=intervals)
    zero = {"zeroline": True, "zerolinewidth": 2, "zerolinecolor": "#57606a"}
    layout = {
        "xaxis": axis_from_zero("difference of the medians, ms<br>(below 0: faster)", **zero),
        "yaxis": {"autorange": "reversed", "type": "category"},
    }
    caption = (
        "Differences of the table above with their 95 % intervals. A difference whose interval contains 0 is not "
        "significant. A hollow point has no interval, because there are too few runs."
    )
    return Chart(name, caption, (trace,), layout, height=120 + 52 * len(comparisons))


def distributions(groups: Sequence[FrameGroup]) -> Chapter:
    """Returns distributions and statistics of the totals of each group."""
    title = "Distribution and statistics"
    answered = [group for group in groups if len(group.results)]
    if not answered:
        return not_measured("statistics", title)
    parts: list[ChapterPart] = []
    if len(answered) <= MAX_CURVES:
        parts.append(cumulative_chart([(group.name, column_values(group.results, "total_ms")) for group in answered]))
    parts.append(_totals_table(answered))
    return Chapter("statistics", title, tuple(parts))


def _totals_table(groups: Sequence[FrameGroup]) -> ReportTable:
    rows = []
    for group in groups:
        totals = describe(column_values(group.results, "total_ms"), seed=SEED)
        values = (getattr(totals, statistic) for statistic in STATISTICS)
        rows.append((group.name, totals.count, 100 * group.result_share, *values))
    caption = (
        "Total latency of the frames that got a result, with 95 % intervals for these runs if the sample is large enough. "
        f"Frames without a result have no total and are not included. {NOTE}"
    )
    return ReportTable("totals", caption, ("run", "frames", "with a result %", *_HEADINGS), rows)


def stages(groups: Sequence[FrameGroup]) -> Chapter:
    """Returns the stages of the frames of each group that a worker answered, as stacked bars and tables."""
    answered = [group for group in groups if len(group.answered)]
    if not answered:
        return not_measured("stages", STAGES_TITLE)
    batches = [answered[first : first + _GROUPS_PER_TABLE] for first in range(0, len(answered), _GROUPS_PER_TABLE)]
    tables = [
        _median_table(batch, f"stages_{number}" if number > 1 else "stages")
        for number, batch in enumerate(batches, start=1)
    ]
    return Chapter("stages", STAGES_TITLE, (_stacked_chart(answered), *tables))


def _stacked_chart(groups: Sequence[FrameGroup]) -> Chart:
    names = [group.name for group in groups]
    means = {part: [float(part_durations(group.answered, part).mean()) for group in groups] for part in _parts(groups)}
    totals = [sum(values) for values in zip(*means.values(), strict=True)]
    traces = tuple(stage_bar(stage, names, values, "mean %{x:.3f} ms") for stage, values in means.items())
    axes = {"xaxis": axis("mean time, ms"), "yaxis": {"autorange": "reversed", "type": "category"}}
    listed = ", ".join(f"{name} {milliseconds(total)}" for name, total in zip(names[:MAX_CURVES], totals, strict=False))
    caption = f"Mean time by stage; the stages of each bar sum to its mean total: {listed}."
    return Chart("stages_stacked", caption, traces, STACKED_LAYOUT | axes, height=220 + 46 * len(groups))


def _median_table(groups: Sequence[FrameGroup], name: str) -> ReportTable:
    rows: tuple[TableRow, ...] = tuple(
        (part, *(float(np.median(part_durations(group.answered, part))) for group in groups))
        for part in (*_parts(groups), "total")
    )
    headings = ("stage", *(f"{group.name} p50 ms" for group in groups))
    return ReportTable(name, "Median time by stage of the frames answered by a worker.", headings, rows)


def _parts(groups: Sequence[FrameGroup]) -> tuple[str, ...]:
    """Returns the stages that frames of any group passed, in order."""
    return parts_in(pd.concat([group.answered for group in groups]))
