"""The local model of a run: its confidence, its failures, and how reliable its confidence is."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import axis, line, points, stacked_histogram, vertical_lines
from analysis.report.content import Caution, ChapterPart, Chart, Paragraph, ReportTable, join_words
from analysis.report.data.answered_frames import column_values
from analysis.report.data.reuse_settings import ReliabilityBin, ReuseSettings
from analysis.report.data.unsent_frames import fates
from analysis.report.output.number_format import milliseconds, number, share
from analysis.report.stage_styles import FATE_COLOURS, SERIES, TOTAL_COLOUR

_BINS = 40
_YES_OR_NO = 0.5  # The lowest confidence in an answer yes or no.


def parts(frames: pd.DataFrame, settings: ReuseSettings) -> Iterator[ChapterPart]:
    """Yields confidences, failures and the reliability diagram, if there are any."""
    if settings.switched_off:
        yield Caution(f"The local model was paused during the run: {settings.switched_off}.")
    if settings.failures:
        listed = join_words([f"{reason} {count:,}" for reason, count in settings.failures.items()])
        yield Caution(f"The local model failed: {listed}.")
    asked = frames[frames["local_confidence"].notna()]
    if len(asked):
        yield _confidence_chart(asked, settings)
        yield Paragraph(_time_text(asked))
    if settings.reliability:
        yield _reliability_chart(settings)
        yield _reliability_table(settings)


def _confidence_chart(asked: pd.DataFrame, settings: ReuseSettings) -> Chart:
    confidences = column_values(asked, "local_confidence")
    edges = np.linspace(min(_YES_OR_NO, float(confidences.min())), 1.0, _BINS + 1)
    traces = stacked_histogram(confidences, fates(asked), edges, FATE_COLOURS, "%{y:,} frames around %{x:.3f}")
    sure_from: dict[float, list[str]] = {}
    low = 1 - settings.c_low if settings.c_low > 0 else np.nan
    for name, value in (("c_high", settings.c_high), ("1 − c_low", low)):
        if np.isfinite(value):
            sure_from.setdefault(round(value, 9), []).append(name)
    marks = vertical_lines({f"{' = '.join(names)} = {value:g}": value for value, names in sure_from.items()})
    sure = int((asked["outcome"] == "answered_locally").sum())
    caption = (
        f"Confidence of the local model in {len(asked):,} frames, median {number(float(np.median(confidences)))}; it "
        f"answered {sure:,} of them ({share(sure / len(asked))})."
    )
    if settings.c_low > 0:
        caption += " The confidence in an answer no is 1 minus the score, so that c_low counts as 1 − c_low."
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": axis("confidence of the local model, 0 to 1"),
        "yaxis": axis("frames"),
        **marks,
    }
    return Chart("local_confidences", caption, traces, layout, height=320)


def _time_text(asked: pd.DataFrame) -> str:
    times_ms = column_values(asked, "inferred_locally_ms")
    p50, p95 = (milliseconds(float(np.nanpercentile(times_ms, percent))) for percent in (50, 95))
    return f"The local model took {p50} (p50) and {p95} (p95) for each of these frames."


def _reliability_chart(settings: ReuseSettings) -> Chart:
    traces = [line("right as often as sure", [0, 1], [0, 1], {"color": TOTAL_COLOUR, "dash": "dot", "width": 1.5})]
    for index, (name, bins) in enumerate(_diagrams(settings)):
        marker = {"size": 9, "color": SERIES[index], "symbol": ("circle", "diamond-open")[index]}
        traces.append(
            points(
                name,
                [each.confidence for each in bins],
                [each.accuracy for each in bins],
                marker,
                f"{name}: %{{y:.3f}} right at confidence %{{x:.3f}}<br>%{{customdata:,}} {settings.unit}",
                customdata=[each.count for each in bins],
            )
            | {"mode": "lines+markers", "line": {"color": SERIES[index], "width": 1.5}}
        )
    errors = [f"{name} {number(_calibration_error(bins), 4)}" for name, bins in _diagrams(settings)]
    caption = (
        f"Reliability of the local model on the drives it was tuned on: share of right {settings.unit} by the confidence in "
        f"them. On the dotted line, the model is right as often as it is sure. Expected calibration error: {join_words(errors)}."
    )
    layout = {
        "xaxis": axis(f"mean confidence in the {settings.unit}, 0 to 1", range=[0, 1.02]),
        "yaxis": axis(f"share of right {settings.unit}, 0 to 1", range=[0, 1.02]),
        "hovermode": "closest",
    }
    return Chart("reliability", caption, tuple(traces), layout, height=420)


def _reliability_table(settings: ReuseSettings) -> ReportTable:
    rows = [
        (f"{number(each.low, 2)} to {number(each.high, 2)}", each.count, each.confidence, each.accuracy)
        for each in settings.reliability
    ]
    headings = ("confidence", settings.unit, "mean confidence", "share right")
    caption = f"The calibrated bins of the reliability diagram, by the confidence in {settings.unit}."
    return ReportTable("reliability", caption, headings, rows)


def _diagrams(settings: ReuseSettings) -> list[tuple[str, Sequence[ReliabilityBin]]]:
    diagrams = (("calibrated", settings.reliability), ("not calibrated", settings.uncalibrated))
    return [(name, bins) for name, bins in diagrams if bins]


def _calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Returns the mean distance of confidence and accuracy, weighted by the answers of each bin."""
    weights = [each.count for each in bins]
    return float(np.average([abs(each.confidence - each.accuracy) for each in bins], weights=weights))
