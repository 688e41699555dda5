"""Statistics of the stages: quartiles and tails with confidence intervals, and the spread of each stage."""

import numpy as np
import pandas as pd

from bench.report.chapters.run.outcomes import unanswered_note
from bench.report.chapters.traces import axis, not_measured
from bench.report.content import CellValue, Chapter, Chart, Paragraph, ReportTable
from bench.report.data.answered_frames import column_values
from bench.report.output.number_format import milliseconds
from bench.report.output.stage_styles import STAGES
from bench.statistics.description import SampleDescription, describe
from shared.runlog.latency_table import PARTS
from shared.runlog.percentiles import NOTE, has_percentile

SEED = 0  # Fixed, so that the same log always gives the same intervals.
ROWS = (*map(str, PARTS), "uplink", "downlink", "crossing", "cloud", "total")
STATISTICS = ("mean", "p25", "p50", "p75", "p95", "p99", "p99_9")
_HEADINGS = ("mean", "p25", "p50", "p75", "p95", "p99", "p99.9", "min", "max", "std")
_MIN_DRAWN_MS = 0.001
_TOTAL_FILL = "#d4d4d4"  # Light, so that the median line is visible.
_INTRODUCTION = (
    "Below each value is its 95 % confidence interval: in 95 of 100 such runs, the interval contains the true value. A "
    "block bootstrap computes the intervals and takes the correlation between successive frames into account. A sample "
    "that is too small has no interval: a percentile needs ten independent frames on each side."
)


def describe_stages(answered: pd.DataFrame) -> dict[str, SampleDescription]:
    """Returns the statistics of every stage and sum."""
    return {name: describe(column_values(answered, f"{name}_ms"), seed=SEED) for name in dict.fromkeys(ROWS)}


def chapter(answered: pd.DataFrame, read: int) -> Chapter:
    """Returns the table of statistics and the spread of the stages; `read` is the number of all frames."""
    if answered.empty:
        return not_measured("statistics", "Statistics")
    parts = (Paragraph(_INTRODUCTION), _table(describe_stages(answered), read), _spread_chart(answered))
    return Chapter("statistics", "Statistics", parts)


def _table(described: dict[str, SampleDescription], read: int) -> ReportTable:
    rows = []
    for name, stage in described.items():
        values: list[CellValue] = [getattr(stage, statistic) for statistic in STATISTICS]
        rows.append((name, stage.count, *values, stage.minimum, stage.maximum, stage.std))
    total = described["total"]
    caption = (
        f"Statistics of {total.count:,} answered frames in milliseconds. Successive frames can be correlated: for the mean "
        f"total, they are worth {total.effective_count:,.0f} independent frames."
        f"{'' if has_percentile(99.9, total.count) else f' {NOTE}'}{unanswered_note(read, total.count)}"
    )
    return ReportTable("statistics", caption, ("stage", "frames", *_HEADINGS), rows)


def _spread_chart(answered: pd.DataFrame) -> Chart:
    """Shows quartiles and the 5th to 95th percentile of each stage on a logarithmic axis."""
    names = [*map(str, PARTS), "total"]
    percentiles = {
        name: np.maximum(_MIN_DRAWN_MS, np.percentile(column_values(answered, f"{name}_ms"), (5, 25, 50, 75, 95)))
        for name in names
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
        f"Values below 1 µs are drawn as 1 µs. {widest} varies most, from {milliseconds(float(percentiles[widest][0]))} to "
        f"{milliseconds(float(percentiles[widest][4]))}."
    )
    layout = {
        "showlegend": False,
        "xaxis": axis("time, ms (logarithmic)", type="log", dtick=1),
        "yaxis": {"autorange": "reversed"},
    }
    return Chart("spread", caption, traces, layout, height=100 + 26 * len(names))
