"""Compares the masks that the vehicles of a run received with the true labels of their bag."""

from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.run_log import load_run
from analysis.streaming.comparisons import MaskComparison
from analysis.streaming.run_accuracy import PRESENTED, run_accuracy
from analysis.study.study_plan import StudyPlan
from modelling.evaluation.bag_images import EvaluationError, labelled_camera
from modelling.evaluation.streaming import StreamingScores, joined
from shared.models.repository import Repository
from shared.runlog.latency_log import CSV_NAME
from shared.runlog.percentiles import percentiles, shown
from shared.terminal_table import Table

STREAMING_COLUMNS = (
    "at_tick_mean_iou", "at_tick_mean_iou_all_ticks", "output_age_p50_ms", "output_age_p95_ms", "for_tick_mean_iou",
    "for_tick_mean_iou_all_ticks", "after_due_p50_ms", "after_due_p95_ms",
)  # fmt: skip
MASK_SINK = "bag"  # The vehicles' sink: masks at the size and with the stamps of their frames.


def check_accuracy(plan: StudyPlan, models: Iterable[str], repository: Repository) -> None:
    """Checks before the first run that the accuracy of a study can be computed.

    Raises:
        SkylaneError: A model is no segmentation, or the bag has no true labels.
    """
    for model in sorted(set(models)):
        task = repository.find(model).manifest.task
        if task != "segmentation":
            raise EvaluationError(
                f"accuracy: true compares masks, and model {model!r} is for {task}: use models for segmentation, or "
                "remove accuracy"
            )
    if plan.bag is not None:
        labelled_camera(plan.bag, None)


def compare_masks(folder: Path, bag: Path, warm_up: int) -> dict[str, Any]:
    """Compares the masks and outputs of the vehicles in `folder` with the true labels in `bag`; then removes them.

    The masks are as large as the frames and would fill the disk. Returns columns of the table of runs. Accuracy of the
    masks, each for its own frame, also those of warm-up frames: the mean IoU over the classes in the true labels except
    `none`, the share of correct pixels, and the number of masks. Streaming accuracy after the `warm_up` first frames (see
    `modelling.evaluation.streaming`): the same mean IoU of what was ready at each tick, also with ticks without an output as
    wrong, with the age of these outputs; and with a presenter, that of what was made for each tick, with the time after
    due at which it was ready.

    Raises:
        SkylaneError: A bag or a log cannot be read, or no tick has labels of its stamp and size.
    """
    found = []
    for vehicle in sorted(log.parent for log in folder.glob(f"vehicle-*/{CSV_NAME}")):
        found.append(run_accuracy(load_run(vehicle), bag, warm_up=warm_up))
        for path in (vehicle, vehicle / PRESENTED):
            rmtree(path / MaskComparison.stored, ignore_errors=True)
    made = [each.for_tick for each in found if each.for_tick is not None]
    at_tick = joined([each.at_tick for each in found])
    for_tick = joined(made) if made else at_tick.of(())
    ceiling = joined([each.ceiling for each in found])
    assert isinstance(ceiling, StreamingScores), "check_accuracy refuses models for other tasks"
    values = {"mean_iou": ceiling.accuracy(), "pixel_accuracy": ceiling.pixel_accuracy()}
    for name, scores in (("at_tick", at_tick), ("for_tick", for_tick)):
        values[f"{name}_mean_iou"] = scores.accuracy()
        values[f"{name}_mean_iou_all_ticks"] = scores.accuracy(with_missing=True)
    after_due_ms = np.concatenate([each.after_due_ms for each in found])
    for name, sample in (("output_age", at_tick.ages_ms()), ("after_due", after_due_ms)):
        values |= dict(zip((f"{name}_p50_ms", f"{name}_p95_ms"), percentiles(sample, (50, 95)), strict=True))
    counts = {
        "masks_compared": len(ceiling.ticks),
        "ticks_scored": len(at_tick.ticks),
        "ticks_without_output": sum(tick.is_missing for tick in at_tick.ticks),
    }
    return {**counts, **{name: value for name, value in values.items() if not np.isnan(value)}}


def accuracy_table(runs: pd.DataFrame) -> Table:
    """Returns a table of the cells with the means of their runs that have a mean IoU; `runs` is the table of runs."""
    table = Table(
        "cell", title="Accuracy, streaming mean IoU at and for the tick, bytes and latency: means of the runs"
    )
    for heading in (
        "runs",
        "kB per frame",
        "mean IoU",
        "pixels correct %",
        "at the tick",
        "for the tick",
        "run p50 ms",
    ):
        table.add_column(heading, justify="right")
    cells = runs[runs["mean_iou"].notna()].groupby("cell")
    columns = ["bytes_per_frame", "mean_iou", "pixel_accuracy", "at_tick_mean_iou", "for_tick_mean_iou", "total_p50_ms"]
    means = cells[columns].mean().assign(runs=cells.size())
    for cell, size, iou, correct, at_tick, for_tick, p50, count in means.sort_values("bytes_per_frame").itertuples():
        shares = (f"{iou:.4f}", f"{100 * correct:.2f}", shown(at_tick, 4), shown(for_tick, 4))
        table.add_row(cell, str(count), f"{size / 1e3:.1f}", *shares, f"{p50:.1f}")
    return table
