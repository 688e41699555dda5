"""Splits the latency of bursts in a study into four terms and compares their queue time with a formula."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.report.content import Chapter, Paragraph, ReportTable, TableRow
from analysis.report.data.burst import BurstLatency, latency_deviation_ms, median_burst, speed_up, split_burst
from analysis.report.data.study_log import ReportedCell, StudyLog

_BURSTS = ("offline", "one_per_worker")  # The scenarios whose frames are due at once, or as soon as they can be sent.


def chapter(study: StudyLog) -> Chapter | None:
    """Returns the four terms of every cell whose frames were due at once; None if there is no such cell."""
    splits = {cell.key: found for cell in study.cells if (found := _splits(study, cell))}
    if not splits:
        return None
    totals: list[TableRow] = []
    terms: list[TableRow] = []
    for cell in study.cells:
        if cell.key not in splits:
            continue
        runs = splits[cell.key]
        shown = median_burst(runs)
        single_worker = _single_worker_splits(study, cell, splits)
        totals.append((
            cell.name, shown.workers, shown.frames, shown.sent, len(runs), shown.total_ms, latency_deviation_ms(runs),
            shown.rate_hz, speed_up(runs, single_worker) if single_worker else np.nan,
        ))  # fmt: skip
        terms.append((
            cell.name, shown.network_ms, shown.client_queue_ms, shown.server_queue_ms, shown.compute_ms, shown.vehicle_ms,
            shown.predicted_queue_ms, shown.predicted_ms / shown.total_ms,
        ))  # fmt: skip
    introduction = Paragraph(
        "The four terms are those of the original distributed video inference. A vehicle sends no more frames than the "
        "workers accept, so frames wait both at the vehicle (client queue) and at the worker (server queue): compare the "
        "sum of both with the formula. Workers on the same machine share its cores, so that T_compute grows with the "
        "number of workers."
    )
    return Chapter("bursts", "Burst latency", (introduction, _totals_table(totals), _terms_table(terms)))


def _totals_table(rows: Sequence[TableRow]) -> ReportTable:
    headings = (
        "cell", "workers", "frames", "sent", "runs", "latency ms", "± latency ms", "results a second", "speed-up",
    )  # fmt: skip
    caption = (
        "Latency of a burst, from the due time of its first frame to its last result, and the number of its frames that "
        "were sent. If a cell has several runs, the run with the median latency is shown. ±: standard deviation of the "
        "runs' latencies, – for one run. Speed-up: latency with one worker over latency of this cell."
    )
    return ReportTable("bursts", caption, headings, rows)


def _terms_table(rows: Sequence[TableRow]) -> ReportTable:
    headings = (
        "cell", "network ms", "client queue ms", "server queue ms", "compute ms", "vehicle work ms",
        "queue by the formula ms", "formula / measured",
    )  # fmt: skip
    caption = (
        "The same latencies, split by the stages of the last result; one that a vehicle got without a worker waited only in "
        "the client queue. Vehicle work: time that the vehicles spent on all frames before they were sent or had a result, "
        "with gate and local model. Formula: the queue time is (N_R − N_S) / N_S · T_compute, where N_R are the frames that "
        "were sent, and T_compute is the mean time for which a worker of the run was busy with a frame."
    )
    return ReportTable("burst_terms", caption, headings, rows)


def _splits(study: StudyLog, cell: ReportedCell) -> list[BurstLatency]:
    """Returns the split of each run of a cell; empty if its frames were not due at once."""
    runs = study.runs[(study.runs["cell"] == cell.key) & (study.runs["state"] == "done")]
    has_columns = {"scenario", "workers"} <= set(runs.columns) and len(runs)
    if not has_columns or runs["scenario"].iloc[0] not in _BURSTS or study.results.empty:
        return []
    workers = int(runs["workers"].iloc[0])
    return [split_burst(run_frames, workers) for _, run_frames in study.group(cell).results.groupby("repetition")]


def _single_worker_splits(
    study: StudyLog, cell: ReportedCell, splits: Mapping[str, list[BurstLatency]]
) -> list[BurstLatency]:
    """Returns the splits of the cell with one worker and otherwise the same settings; empty if there is none."""

    def other_settings(other: ReportedCell) -> dict[str, Any]:
        return {axis: value for axis, value in other.settings.items() if axis != "workers"}

    same = [each for each in study.cells if each.key in splits and other_settings(each) == other_settings(cell)]
    return next((splits[each.key] for each in same if splits[each.key][0].workers == 1), [])
