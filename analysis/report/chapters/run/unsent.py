"""The frames of a run that were not sent, because a result was reused or the vehicle's own model answered.

The gate: how different the frames were, and how old the reused results. The local model: its confidence, its failures, and
how reliable its confidence is.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.logs.run_log import RunLog, frames_not_sent
from analysis.report.chapters.run.outcomes import NOT_SENT_TITLE
from analysis.report.chapters.traces import axis, bars, line, points, stacked_histogram, vertical_lines
from analysis.report.content import Caution, Chapter, ChapterPart, Chart, Paragraph, ReportTable, TableRow, join_words
from analysis.report.data.answered_frames import column_values, timed_results
from analysis.report.data.unsent_frames import (
    ReliabilityBin,
    ReuseSettings,
    fates,
    origin_summaries,
    reuse_ages,
    reuse_settings,
    savings,
)
from analysis.report.output.number_format import milliseconds, number, share, size
from analysis.report.stage_styles import FATE_COLOURS, SERIES, TOTAL_COLOUR
from analysis.statistics.bootstrap import Floats
from shared.runlog.percentiles import NOTE, has_percentile, percentiles

_BINS = 40

_SMALLEST_SHARE = 1e-3  # Share of the threshold; smaller distances are drawn at it, as a logarithmic axis has no 0.

_YES_OR_NO = 0.5  # The lowest confidence in an answer yes or no.


_INTRODUCTION = (
    "A frame is not sent if it looks nearly the same as an earlier frame, whose result it then gets (the gate), or if the "
    "vehicle's own model is sure of its answer (the cascade) or answers because no worker can."
)


def chapters(run: RunLog) -> Iterator[Chapter]:
    """Yields the chapter of a run with a gate or a local model; nothing for other runs."""
    settings = reuse_settings(run)
    if not (settings.is_used or len(frames_not_sent(run.frames))):
        return
    parts: list[ChapterPart] = [Paragraph(_INTRODUCTION), _origins_table(run.frames)]
    if len(frames_not_sent(run.frames)):
        parts.append(Paragraph(_savings_text(run.frames)))
    parts += _gate_parts(run.frames, settings)
    parts += _local_model_parts(run.frames, settings)
    if rows := list(_setting_rows(settings)):
        caption = "Settings of gate and cascade in this run."
        parts.append(ReportTable("reuse_settings", caption, ("setting", "value"), rows))
    yield Chapter("unsent", NOT_SENT_TITLE, tuple(parts))


def _origins_table(frames: pd.DataFrame) -> ReportTable:
    rows: list[TableRow] = [
        (each.origin, each.outcome, each.frames, 100 * each.share, each.p50_ms, each.p95_ms, each.p99_ms)
        for each in origin_summaries(frames)
    ]
    totals = column_values(timed_results(frames), "total_ms")
    if len(rows) > 1:
        of_all = 100 * len(totals) / len(frames)
        rows.append(("all results", "", len(totals), of_all, *percentiles(totals, (50, 95, 99))))
    headings = ("origin of the result", "outcome", "frames", "share %", "p50 ms", "p95 ms", "p99 ms")
    is_small = any(not has_percentile(99, int(str(row[2]))) for row in rows)
    caption = (
        f"Total latency of the frames with a result by its origin, and their share of the {len(frames):,} frames read. The "
        "total of a reused or local result ends when this result is ready at the vehicle."
        f"{f' {NOTE}' if is_small else ''}"
    )
    return ReportTable("origins", caption, headings, rows, {"share %": 2})


def _savings_text(frames: pd.DataFrame) -> str:
    saved = savings(frames)
    text = (
        f"{saved.inferences:,} of {len(frames):,} frames ({share(saved.inferences / len(frames))}) needed no inference of a "
        "worker"
    )
    if not np.isfinite(saved.bytes_each):
        return f"{text}. The bytes saved are not known, because no frame was answered by a worker."
    return (
        f"{text} and no transmission. At the mean of the frames that were answered by a worker ({size(saved.bytes_each)} "
        f"with the result), this saved about {size(saved.bytes_total)}."
    )


def _setting_rows(settings: ReuseSettings) -> Iterator[TableRow]:
    """Yields the settings that the manifest has."""
    if settings.method:
        yield "gate", f"{settings.method} ({settings.distance})"
    values = {
        "threshold of the gate": (settings.threshold, ""),
        "longest reuse, frames": (settings.reuse_frames, ""),
        "longest reuse": (settings.reuse_ms, " ms"),
        "kept results discarded, because a camera changed": (settings.resets, ""),
    }
    yield from ((name, f"{value:g}{unit}") for name, (value, unit) in values.items() if np.isfinite(value))
    if settings.local_model:
        yield "local model", settings.local_model
    cascade = {"c_low": settings.c_low, "c_high": settings.c_high, "temperature": settings.temperature}
    yield from ((name, f"{value:g}") for name, value in cascade.items() if np.isfinite(value))
    if settings.tuning:
        yield "tuning file", settings.tuning


def _gate_parts(frames: pd.DataFrame, settings: ReuseSettings) -> Iterator[ChapterPart]:
    """Yields the distances of the compared frames and the ages of the reused results, if there are any."""
    compared = frames[frames["gate_distance"].notna()]
    if len(compared):
        yield _distance_chart(compared, settings)
    age_frames, ages_ms = reuse_ages(frames)
    if len(ages_ms):
        yield _age_chart(ages_ms, settings)
        yield _age_table(age_frames, ages_ms, settings)


def _distance_chart(compared: pd.DataFrame, settings: ReuseSettings) -> Chart:
    distances = column_values(compared, "gate_distance")
    threshold = settings.threshold
    positive = distances[distances > 0]
    scale = threshold if threshold > 0 else float(np.median(positive)) if len(positive) else 1.0
    smallest = max(scale * _SMALLEST_SHARE, float(positive.min(initial=scale)))
    drawn = np.maximum(distances, smallest)
    edges = np.geomspace(smallest, max(float(drawn.max()), scale) * 1.001, _BINS + 1)
    traces = stacked_histogram(drawn, fates(compared), edges, FATE_COLOURS, "%{y:,} frames around %{x:.3g}")
    has_line = threshold > 0  # A logarithmic axis has no 0.
    marks = vertical_lines({f"threshold {threshold:g}": threshold}, is_log=True) if has_line else {}
    below = float((distances <= threshold).mean()) if np.isfinite(threshold) else np.nan
    caption = (
        f"Distance of {len(compared):,} frames from the frame whose result could be reused, median "
        f"{number(float(np.median(distances)))}. "
    )
    if np.isfinite(threshold):
        caption += (
            f"{share(below)} are not above the threshold {threshold:g}; such a frame is sent if the result has become too "
            "old. "
        )
    if (distances < smallest).any():
        caption += f"Distances below {smallest:.3g} are drawn at this value."
    title = f"{settings.distance}<br>(logarithmic)"
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": axis(title, type="log", dtick=1),
        "yaxis": axis("frames"),
        **marks,
    }
    return Chart("gate_distances", caption, traces, layout, height=320)


def _age_chart(ages_ms: Floats, settings: ReuseSettings) -> Chart:
    edges = np.linspace(0.0, max(float(ages_ms.max()) * 1.001, 1.0), _BINS + 1)
    counts, _ = np.histogram(ages_ms, edges)
    trace = bars(counts, edges, FATE_COLOURS["reused"], "%{y:,} frames around %{x:.0f} ms")
    caption = (
        f"Age of the {len(ages_ms):,} reused results: time between the frame and the one whose result it got, median "
        f"{milliseconds(float(np.median(ages_ms)))}, at most {milliseconds(float(ages_ms.max()))}."
    )
    if np.isfinite(settings.reuse_ms):
        caption += f" The longest reuse is {milliseconds(settings.reuse_ms)}."
    layout = {"bargap": 0, "xaxis": axis("age of the reused result, ms"), "yaxis": axis("frames")}
    return Chart("reuse_ages", caption, (trace,), layout, height=280)


def _age_table(age_frames: Floats, ages_ms: Floats, settings: ReuseSettings) -> ReportTable:
    rows: list[TableRow] = [
        (unit, *(float(np.percentile(ages, percent)) for percent in (50, 95)), float(ages.max()), longest)
        for unit, ages, longest in (
            ("frames of the camera", age_frames, settings.reuse_frames),
            ("ms", ages_ms, settings.reuse_ms),
        )
    ]
    caption = f"Age of the {len(ages_ms):,} reused results, and the longest that the gate allows."
    return ReportTable("reuse_ages", caption, ("age in", "p50", "p95", "largest", "allowed"), rows)


def _local_model_parts(frames: pd.DataFrame, settings: ReuseSettings) -> Iterator[ChapterPart]:
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
    right = "Right are those that agree with the results of the reference model. " if settings.is_agreement else ""
    caption = (
        f"Reliability of the local model on the drives it was tuned on: share of right {settings.unit} by the confidence in "
        f"them. {right}On the dotted line, the model is right as often as it is sure. Expected calibration error: "
        f"{join_words(errors)}."
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
