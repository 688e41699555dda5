"""The stages in statistics: quartiles and tails with their intervals, and how far each stage spreads."""

import numpy as np
import pandas as pd

from bench.report.chapters.run.outcomes import left_out
from bench.report.content import Cell, Chart, Column, Kind, Prose, Section, Table, numbers
from bench.report.data.answered_frames import column
from bench.report.output.number_format import milliseconds
from bench.report.output.stage_styles import STAGES
from bench.statistics.description import Description, describe
from shared.runlog.latency_table import PARTS
from shared.runlog.percentiles import NOTE, has_percentile

SEED = 0  # Of the intervals: the same log gives the same report.
ROWS = (*map(str, PARTS), "uplink", "downlink", "crossing", "cloud", "total")
_FIGURES = ("mean", "p25", "p50", "p75", "p95", "p99", "p99_9")
_HEADINGS = ("mean", "p25", "p50", "p75", "p95", "p99", "p99.9", "min", "max", "std")
_SHORTEST_MS = 0.001
_TOTAL = "#d4d4d4"  # Light: a median must show on it.
_ABOUT = (
    "Under each figure stands the interval that holds the true value in 95 of 100 such runs, by a block bootstrap that "
    "knows that frames of one run follow one another. Where a sample is too small for an interval, none is given: a "
    "percentile needs ten independent frames on either side of it."
)


def describe_stages(known: pd.DataFrame) -> dict[str, Description]:
    """Every stage and sum of the answered frames, in time order."""
    return {name: describe(column(known, f"{name}_ms"), seed=SEED) for name in dict.fromkeys(ROWS)}


def chapter(described: dict[str, Description], known: pd.DataFrame, read: int) -> Section:
    """The table of statistics, and the spread of the stages. `known`: the frames answered, of so many `read`."""
    if known.empty:
        return Section("statistics", "Statistics", (Prose("Not measured: no frame was answered."),))
    return Section("statistics", "Statistics", (Prose(_ABOUT), table(described, read), _spread(known)))


def table(described: dict[str, Description], read: int) -> Table:
    """The statistics of each stage and sum."""
    rows = []
    for name, told in described.items():
        figures: list[Cell] = [getattr(told, figure) for figure in _FIGURES]
        rows.append((name, told.count, *figures, told.minimum, told.maximum, told.std))
    columns = (Column("stage", Kind.STAGE), *numbers("frames", *_HEADINGS))
    total = described["total"]
    caption = (
        f"Statistics of {total.count:,} answered frames, milliseconds. As they follow one another, they tell as much of the mean total as "
        f"{total.effective_count:,.0f} independent ones would."
        f"{'' if has_percentile(99.9, total.count) else f' {NOTE}'}{left_out(read, total.count)}"
    )
    return Table("statistics", caption, columns, tuple(rows))


def _spread(known: pd.DataFrame) -> Chart:
    """Quartiles, and the middle nine tenths, of each stage on a logarithmic axis."""
    names = [*map(str, PARTS), "total"]
    figures = {
        name: np.maximum(_SHORTEST_MS, np.percentile(column(known, f"{name}_ms"), (5, 25, 50, 75, 95)))
        for name in names
    }
    traces = tuple(
        {
            "type": "box", "orientation": "h", "name": name, "y": [name],
            "lowerfence": [low], "q1": [q1], "median": [middle], "q3": [q3], "upperfence": [high],
            "line": {"color": "#24292f", "width": 1.2},
            "fillcolor": STAGES[name].colour if name in STAGES else _TOTAL,
            "hoverinfo": "x",
        }
        for name, (low, q1, middle, q3, high) in figures.items()
    )  # fmt: skip
    widest = max(names[:-1], key=lambda name: figures[name][4] - figures[name][0])
    caption = (
        f"The spread of each stage: box, quartiles; line in it, median; whiskers, from the 5th to the 95th percentile. What "
        f"is shorter than a microsecond is drawn as one. Widest is {widest}: {milliseconds(float(figures[widest][0]))} to "
        f"{milliseconds(float(figures[widest][4]))}."
    )
    layout = {
        "showlegend": False,
        "xaxis": {"type": "log", "title": {"text": "time, ms (logarithmic)"}, "dtick": 1},
        "yaxis": {"autorange": "reversed"},
    }
    return Chart("spread", caption, traces, layout, height=100 + 26 * len(names))
