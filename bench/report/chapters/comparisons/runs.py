"""Several runs or cells side by side: how far apart they are, how surely, and in which stage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog
from bench.report.chapters.run.distribution import cumulative
from bench.report.chapters.run.stage_statistics import SEED
from bench.report.content import Chart, Column, Kind, Part, Prose, Row, Section, Table, joined, numbers, texts
from bench.report.data.answered_frames import answered, column
from bench.report.output.number_format import interval, milliseconds, probability
from bench.report.output.stage_styles import STAGES, TOTAL, bar
from bench.statistics.comparison import Comparison, Sample, compare
from bench.statistics.description import describe
from bench.statistics.run_test import LEAST_RUNS
from shared.runlog.latency_table import PARTS
from shared.runlog.percentiles import NOTE

MOST_CURVES = 12
_ABREAST = 5  # Sides in one table: more do not fit on a page.
_FIGURES = ("mean", "p25", "p50", "p75", "p95", "p99", "p99_9")
_HEADINGS = ("mean ms", "p25 ms", "p50 ms", "p75 ms", "p95 ms", "p99 ms", "p99.9 ms")


@dataclass(frozen=True, slots=True)
class Side:
    """A run or a cell of a study: its answered frames in time order, run by run."""

    name: str
    frames: pd.DataFrame
    runs: pd.Series | None = None  # The run of each frame, which is its block in a study; None: all are of one.
    answered: float = np.nan  # Of the frames read, the share; nan: not known.

    @classmethod
    def of(cls, run: RunLog) -> "Side":
        """A run as a side."""
        frames = answered(run.frames)
        part = len(frames) / len(run.frames) if len(run.frames) else np.nan
        return cls(run.name, frames, answered=part)


def compared(pairs: Iterable[tuple[Side, Side]], *, in_blocks: bool) -> list[Comparison]:
    """Compare the totals of the second side with those of the first, for each pair.

    `in_blocks`: the sides are cells of a study, whose repetitions are blocks.
    """
    samples = [tuple(Sample(side.name, side.frames["total_ms"], side.runs) for side in pair) for pair in pairs]
    return compare([(a, b) for a, b in samples], in_blocks=in_blocks)


def chapter(sides: Sequence[Side]) -> Section:
    """Every run against the first."""
    known = [side for side in sides if len(side.frames)]
    if len(known) < 2:  # noqa: PLR2004  One cannot be compared.
        return Section("comparison", "Comparison", (Prose("Not measured: fewer than two runs have answered frames."),))
    found = compared(((known[0], other) for other in known[1:]), in_blocks=False)
    return Section(
        "comparison", "Comparison", (*told(found), table(found, "comparison"), differences(found, "differences"))
    )


def told(found: Sequence[Comparison]) -> tuple[Part, ...]:
    """Each comparison as a sentence."""
    return tuple(Prose(comparison.sentence) for comparison in found)


def table(found: Sequence[Comparison], name: str) -> Table:
    """The differences with their intervals, and the verdict on each."""
    rows = tuple(
        (
            each.b, each.a, f"{each.runs_b} and {each.runs_a}", each.difference, each.ratio, each.hedges_g,
            each.probability_b_lower, each.verdict, probability(each.p_value),
        )
        for each in found
    )  # fmt: skip
    columns = (
        *texts("of", "against", "runs"),
        *numbers("difference ms", "ratio", "Hedges' g", "P(lower)"),
        *texts("verdict", "p"),
    )
    caption = (
        "Differences of the runs' median totals. Hedges' g: difference of the frames' means in standard deviations. "
        "P(lower): the chance that a frame of the first is faster than one of the second; both describe these frames. "
        f"{tested(each.method for each in found)}"
    )
    return Table(name, caption, columns, rows)


def tested(methods: Iterable[str]) -> str:
    """Which test the verdicts of a table rest on."""
    made = [method for method in methods if method]
    if not made:
        return f"No test: it needs at least {LEAST_RUNS} runs a side."
    many = f", adjusted for {len(made)} comparisons by Bonferroni's method" if len(made) > 1 else ""
    return f"Verdict: {joined(list(dict.fromkeys(made)))} of the runs' figures; 95 % intervals and p-values{many}."


def differences(found: Sequence[Comparison], name: str) -> Chart:
    """Each difference as a point with its interval."""
    labels = [f"{each.b}<br>against {each.a}" for each in found]
    values = np.array([each.difference.value for each in found])
    low, high = (np.array([getattr(each.difference, end) for each in found]) for end in ("low", "high"))
    trace = {
        "type": "scatter", "mode": "markers", "x": values, "y": labels,
        "error_x": {
            "type": "data", "symmetric": False, "array": np.nan_to_num(high - values),
            "arrayminus": np.nan_to_num(values - low), "thickness": 2, "width": 6, "color": TOTAL,
        },
        "marker": {
            "size": 10, "color": TOTAL, "symbol": ["circle" if known else "circle-open" for known in np.isfinite(low)],
        },
        "hovertemplate": "%{x:.3f} ms<extra></extra>",
        "showlegend": False,
    }  # fmt: skip
    shown = "; ".join(
        f"{each.b}: {milliseconds(each.difference.value).replace('not known', '–')}"
        + (f" ({interval(each.difference)} ms)" if interval(each.difference) else "")
        for each in found[:MOST_CURVES]
    )
    layout = {
        "xaxis": {"title": {"text": "difference of the medians, ms<br>(left of 0: faster)"}, "rangemode": "tozero", "zeroline": True,
                  "zerolinewidth": 2, "zerolinecolor": "#57606a"},
        "yaxis": {"autorange": "reversed", "type": "category"},
    }  # fmt: skip
    caption = (
        "Differences with their 95 % intervals; one that crosses 0 shows no difference, and a hollow point has too few "
        f"runs for an interval. {shown}."
    )
    return Chart(name, caption, (trace,), layout, height=120 + 52 * len(found))


def spreads(sides: Sequence[Side]) -> Section:
    """Distributions and statistics of the totals of each side."""
    known = [side for side in sides if len(side.frames)]
    if not known:
        return Section("statistics", "Distribution and statistics", (Prose("Not measured: no frame was answered."),))
    parts: list[Part] = []
    if len(known) <= MOST_CURVES:
        parts.append(cumulative([(side.name, column(side.frames, "total_ms")) for side in known]))
    parts.append(_totals(known))
    return Section("statistics", "Distribution and statistics", tuple(parts))


def _totals(sides: Sequence[Side]) -> Table:
    rows = []
    for side in sides:
        described = describe(column(side.frames, "total_ms"), seed=SEED)
        rows.append((side.name, described.count, 100 * side.answered, *(getattr(described, name) for name in _FIGURES)))
    caption = (
        "Totals of the answered frames, with 95 % intervals where the sample can give them: for these runs, not for how "
        f"another would differ. What was not answered has no total and is in none of them. {NOTE}"
    )
    return Table("totals", caption, (*texts("run"), *numbers("frames", "answered %", *_HEADINGS)), tuple(rows))


def stages(sides: Sequence[Side]) -> Section:
    """The stages of each side, stacked and in a table."""
    known = [side for side in sides if len(side.frames)]
    if not known:
        return Section("stages", "Where the time goes", (Prose("Not measured: no frame was answered."),))
    groups = [known[place : place + _ABREAST] for place in range(0, len(known), _ABREAST)]
    tables = [
        _medians(group, f"stages_{place}" if place > 1 else "stages") for place, group in enumerate(groups, start=1)
    ]
    return Section("stages", "Where the time goes", (_stacked(known), *tables))


def _stacked(sides: Sequence[Side]) -> Chart:
    names = [side.name for side in sides]
    by_part = {str(part): [float(column(side.frames, f"{part}_ms").mean()) for side in sides] for part in PARTS}
    totals = [sum(values) for values in zip(*by_part.values(), strict=True)]
    traces = tuple(
        {
            "type": "bar", "orientation": "h", "name": part, "y": names, "x": values, "marker": bar(part),
            "hovertemplate": f"<b>{part}</b>: the frame {STAGES[part].meaning}<br>mean %{{x:.3f}} ms<extra></extra>",
        }
        for part, values in by_part.items()
    )  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "mean time, ms"}},
        "yaxis": {"autorange": "reversed", "type": "category"},
        "legend": {"traceorder": "normal", "orientation": "h", "y": 0, "yanchor": "bottom", "yref": "container"},
        "margin": {"b": 150, "t": 12},
    }
    shown = ", ".join(
        f"{name} {milliseconds(total)}" for name, total in list(zip(names, totals, strict=True))[:MOST_CURVES]
    )
    caption = f"Mean time by stage; the stages of a bar sum to its mean total: {shown}."
    return Chart("stages_stacked", caption, traces, layout, height=220 + 46 * len(sides))


def _medians(sides: Sequence[Side], name: str) -> Table:
    rows: tuple[Row, ...] = tuple(
        (part, *(float(np.median(column(side.frames, f"{part}_ms"))) for side in sides))
        for part in (*map(str, PARTS), "total")
    )
    columns = (Column("stage", Kind.STAGE), *numbers(*(f"{side.name} p50 ms" for side in sides)))
    return Table(name, "Median time by stage.", columns, rows)
