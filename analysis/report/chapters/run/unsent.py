"""The frames of a run that were not sent, because a result was reused or the vehicle's own model answered."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.logs.run_log import RunLog, frames_not_sent
from analysis.report.chapters.run import gate, local_model
from analysis.report.chapters.run.outcomes import NOT_SENT_TITLE
from analysis.report.content import Chapter, ChapterPart, Paragraph, ReportTable, TableRow
from analysis.report.data.answered_frames import column_values, timed_results
from analysis.report.data.reuse_settings import ReuseSettings, reuse_settings
from analysis.report.data.unsent_frames import origin_summaries, savings
from analysis.report.output.number_format import share, size
from shared.runlog.percentiles import NOTE, has_percentile, percentiles

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
    parts += gate.parts(run.frames, settings)
    parts += local_model.parts(run.frames, settings)
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
