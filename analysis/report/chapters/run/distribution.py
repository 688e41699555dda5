"""The distribution of the total latency, and the statistics of all stages with their confidence intervals."""

import numpy as np
import pandas as pd

from analysis.logs.run_log import ORIGINS
from analysis.report.chapters.run.outcomes import unanswered_note
from analysis.report.chapters.traces import axis, bars, line, not_measured, vertical_lines
from analysis.report.content import CellValue, Chapter, ChapterPart, Chart, Paragraph, ReportTable, Toggle, Trace
from analysis.report.data.answered_frames import answered_frames, column_values, parts_in, timed_results
from analysis.report.output.number_format import milliseconds
from analysis.report.stage_styles import STAGES, TOTAL_COLOUR, series_style
from analysis.statistics.bootstrap import Floats
from analysis.statistics.description import SampleDescription, describe
from shared.runlog.percentiles import NOTE, has_percentile
from shared.stages import OPTIONAL_STAGES

SEED = 0  # Fixed, so that the same log always gives the same intervals.
_SUMS = ("uplink", "downlink", "crossing", "cloud", "total")
STATISTICS = ("mean", "p25", "p50", "p75", "p95", "p99", "p99_9")
_HEADINGS = ("mean", "p25", "p50", "p75", "p95", "p99", "p99.9", "min", "max", "std")
_MIN_DRAWN_MS = 0.001
_TOTAL_FILL = "#d4d4d4"  # Light, so that the median line is visible.
_INTRODUCTION = (
    "Below each value is its 95 % confidence interval: in 95 of 100 such runs, the interval contains the true value. A "
    "block bootstrap computes the intervals and takes the correlation between successive frames into account. A sample "
    "that is too small has no interval: a percentile needs ten independent frames on each side."
)
_MAX_BINS = 120
_MAX_POINTS = 2000
_MAX_NAMED_SAMPLES = 8
_PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}


def chapter(frames: pd.DataFrame) -> Chapter:
    """Returns the histogram of the frames answered by a worker, and the cumulative distribution of all results by origin."""
    results = timed_results(frames)
    samples = [
        (origin, column_values(results[results["outcome"] == outcome], "total_ms"))
        for outcome, origin in ORIGINS.items()
        if (results["outcome"] == outcome).any()
    ]
    if not samples:
        return not_measured("distribution", "Distribution")
    parts: list[ChapterPart] = []
    if len(answered := answered_frames(frames)):
        parts.append(_histogram(column_values(answered, "total_ms"), frames))
    if len(samples) == 1:
        parts.append(cumulative_chart([("total", samples[0][1])]))
    else:
        all_results = ("all results", column_values(results, "total_ms"))
        parts.append(cumulative_chart([all_results, *samples], is_wide=True))
    return Chapter("distribution", "Distribution", tuple(parts))


def _histogram(totals: Floats, frames: pd.DataFrame) -> Chart:
    counts, edges = np.histogram(totals, _bin_edges(totals))
    percentiles = {
        name: float(np.percentile(totals, percent))
        for name, percent in _PERCENTILES.items()
        if has_percentile(percent, len(totals))
    }
    highest = int(counts.argmax())
    trace = bars(counts, edges, "#8fb4c4", "%{y:,} frames around %{x:.2f} ms")
    layout = {
        "bargap": 0,
        "xaxis": axis("total, ms (frame due to result decoded)"),
        "yaxis": axis(f"frames per {edges[1] - edges[0]:.3g} ms"),
        **vertical_lines({f"{name} {milliseconds(value)}": value for name, value in percentiles.items()}),
    }
    caption = (
        f"Total latency of {len(totals):,} frames answered by a worker, from {milliseconds(float(totals.min()))} to "
        f"{milliseconds(float(totals.max()))}. The highest bar has {int(counts[highest]):,} frames, from "
        f"{milliseconds(float(edges[highest]))} to {milliseconds(float(edges[highest + 1]))}."
        f"{unanswered_note(frames, len(totals))}"
    )
    return Chart("histogram", caption, (trace,), layout, height=340)


def _bin_edges(totals: Floats) -> Floats:
    """Returns the edges of at most 120 bins with the width of Freedman and Diaconis (1981)."""
    p25, p75 = np.percentile(totals, (25, 75))
    width = 2 * float(p75 - p25) / len(totals) ** (1 / 3)
    bins = float(np.ptp(totals)) / width if width else 1.0
    return np.histogram_bin_edges(totals, int(np.ceil(np.clip(bins, 1, _MAX_BINS)))).astype(np.float64)


def cumulative_chart(samples: list[tuple[str, Floats]], *, is_wide: bool = False) -> Chart:
    """Returns the cumulative distributions of samples (name and totals); a button switches to the tail.

    `is_wide`: the samples differ so much that the axis of the times is logarithmic.
    """
    traces: list[Trace] = []
    within, beyond = [], []
    for index, (name, totals) in enumerate(samples):
        times, shares = _steps(totals)
        colour, dash = (TOTAL_COLOUR, "solid") if len(samples) == 1 else series_style(index)
        within.append((100 * shares).tolist())
        beyond.append((100 * (1 - shares) + 100 / len(totals)).tolist())
        style = {"color": colour, "dash": dash, "width": 2, "shape": "hv"}
        traces.append(line(name, times, within[-1], style, f"{name}: %{{y:.3f}} %<br>%{{x:.2f}} ms"))
    title, tail_title = "frames with a result within that time, %", "frames that took that long or longer, %"
    linear = {"yaxis.type": "linear", "yaxis.title.text": title, "yaxis.autorange": False, "yaxis.range": [0, 101]}
    tail = {"yaxis.type": "log", "yaxis.title.text": tail_title, "yaxis.autorange": True}
    times_axis = axis("total, ms (logarithmic)", type="log", dtick=1) if is_wide else axis("total, ms")
    layout = {"xaxis": times_axis, "yaxis": axis(title, range=[0, 101])}
    listed = "; ".join(f"{name}: {_percentile_text(totals)}" for name, totals in samples[:_MAX_NAMED_SAMPLES])
    toggles = (Toggle("share within", {"y": within}, linear), Toggle("tail, logarithmic", {"y": beyond}, tail))
    caption = f"Share of the frames with a result whose total latency is at most the time on the x axis: {listed}."
    return Chart("cumulative", caption, tuple(traces), layout, toggles=toggles)


def _percentile_text(totals: Floats) -> str:
    """Describes the median and, if the sample is large enough, the 99th percentile."""
    median = f"50 % within {milliseconds(float(np.percentile(totals, 50)))}"
    if not has_percentile(99, len(totals)):
        return f"{median}, all within {milliseconds(float(totals.max()))}"
    return f"{median}, 99 % within {milliseconds(float(np.percentile(totals, 99)))}"


def _steps(totals: Floats) -> tuple[Floats, Floats]:
    """Returns sorted times and the share of frames within each; long samples keep the slowest hundred frames."""
    ordered = np.sort(totals)
    shares = np.arange(1, len(ordered) + 1) / len(ordered)
    if len(ordered) > _MAX_POINTS:
        even = np.linspace(0, len(ordered) - 1, _MAX_POINTS).astype(int)
        kept = np.unique(np.concatenate((even, np.arange(len(ordered) - 100, len(ordered)))))
        return ordered[kept], shares[kept]
    return ordered, shares


def describe_stages(answered: pd.DataFrame) -> dict[str, SampleDescription]:
    """Returns the statistics of every stage and sum; those of an optional stage are of the frames that passed it."""
    return {name: describe(_passed(answered, name), seed=SEED) for name in dict.fromkeys((*parts_in(answered), *_SUMS))}


def _passed(answered: pd.DataFrame, name: str) -> Floats:
    durations = column_values(answered, f"{name}_ms")
    return durations[np.isfinite(durations)] if name in OPTIONAL_STAGES else durations


def statistics_chapter(frames: pd.DataFrame, answered: pd.DataFrame) -> Chapter:
    """Returns statistics and spread of the stages of frames answered by a worker; `frames` are all frames of the run."""
    if answered.empty:
        return not_measured("statistics", "Statistics")
    parts = (Paragraph(_INTRODUCTION), _statistics_table(describe_stages(answered), frames), _spread_chart(answered))
    return Chapter("statistics", "Statistics", parts)


def _statistics_table(described: dict[str, SampleDescription], frames: pd.DataFrame) -> ReportTable:
    rows = []
    for name, stage in described.items():
        values: list[CellValue] = [getattr(stage, statistic) for statistic in STATISTICS]
        rows.append((name, stage.count, *values, stage.minimum, stage.maximum, stage.std))
    total = described["total"]
    caption = (
        f"Statistics of {total.count:,} frames answered by a worker, in milliseconds. Successive frames can be correlated: for the mean "
        f"total, they are worth {total.effective_count:,.0f} independent frames."
        f"{'' if has_percentile(99.9, total.count) else f' {NOTE}'}{unanswered_note(frames, total.count)}"
    )
    return ReportTable("statistics", caption, ("stage", "frames", *_HEADINGS), rows)


def _spread_chart(answered: pd.DataFrame) -> Chart:
    """Shows quartiles and the 5th to 95th percentile of each stage on a logarithmic axis."""
    names = [*parts_in(answered), "total"]
    percentiles = {
        name: np.maximum(_MIN_DRAWN_MS, np.percentile(_passed(answered, name), (5, 25, 50, 75, 95))) for name in names
    }
    traces = tuple(
        {
            "type": "box", "orientation": "h", "name": name, "y": [name],
            "lowerfence": [low], "q1": [q1], "median": [middle], "q3": [q3], "upperfence": [high],
            "line": {"color": "#24292f", "width": 1.2},
            "fillcolor": STAGES[name].colour if name in STAGES else _TOTAL_FILL,
            "hoverinfo": "x",
        }
        for name, (low, q1, middle, q3, high) in percentiles.items()
    )  # fmt: skip
    widest = max(names[:-1], key=lambda name: percentiles[name][4] - percentiles[name][0])
    caption = (
        "Spread of each stage: the box shows the quartiles, its line the median, the whiskers the 5th and 95th percentile. "
        f"Values below 1 µs are drawn as 1 µs. The stage {widest} varies most, from {milliseconds(float(percentiles[widest][0]))} to "
        f"{milliseconds(float(percentiles[widest][4]))}."
    )
    layout = {
        "showlegend": False,
        "xaxis": axis("time, ms (logarithmic)", type="log", dtick=1),
        "yaxis": {"autorange": "reversed"},
    }
    return Chart("spread", caption, traces, layout, height=100 + 26 * len(names))
