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
    `none`, the share of correct pixels, and the number of masks. Accuracy of what a vehicle could act on at each tick after
    its `warm_up` first frames: the same mean IoU, of the outputs and with ticks without an output as wrong, and the age of
    the outputs.

    Raises:
        SkylaneError: A bag or a log cannot be read, or no tick has labels of its stamp and size.
    """
    masks, outputs = [], []
    for vehicle in sorted(log.parent for log in folder.glob(f"vehicle-*/{CSV_NAME}")):
        found = run_accuracy(load_run(vehicle), bag)
        masks.append(found.ceiling)
        outputs.append(found.outputs_from(warm_up))
        for path in (vehicle, vehicle / PRESENTED):
            rmtree(path / MaskComparison.stored, ignore_errors=True)
    ceiling, streaming = (joined(each) for each in (masks, outputs))
    assert isinstance(ceiling, StreamingScores), "check_accuracy refuses models for other tasks"
    assert isinstance(streaming, StreamingScores), "check_accuracy refuses models for other tasks"
    missing = sum(tick.is_missing for tick in streaming.ticks)
    values = {
        "mean_iou": ceiling.mean_iou(),
        "pixel_accuracy": ceiling.pixel_accuracy(),
        "streaming_mean_iou": streaming.mean_iou(),
        "streaming_mean_iou_all_ticks": streaming.mean_iou(with_missing=True),
        **dict(
            zip(("output_age_p50_ms", "output_age_p95_ms"), percentiles(streaming.ages_ms(), (50, 95)), strict=True)
        ),
    }
    counts = {
        "masks_compared": len(ceiling.ticks),
        "ticks_scored": len(streaming.ticks),
        "ticks_without_output": missing,
    }
    return {**counts, **{name: value for name, value in values.items() if not np.isnan(value)}}


def accuracy_table(runs: pd.DataFrame) -> Table:
    """Returns a table of the cells with the means of their runs that have a mean IoU; `runs` is the table of runs."""
    table = Table("cell", title="Accuracy, bytes and latency: means of the runs")
    for heading in ("runs", "kB per frame", "mean IoU", "pixels correct %", "streaming mean IoU", "run p50 ms"):
        table.add_column(heading, justify="right")
    cells = runs[runs["mean_iou"].notna()].groupby("cell")
    columns = ["bytes_per_frame", "mean_iou", "pixel_accuracy", "streaming_mean_iou", "total_p50_ms"]
    means = cells[columns].mean().assign(runs=cells.size())
    for cell, size, iou, correct, streaming, p50, count in means.sort_values("bytes_per_frame").itertuples():
        shares = (f"{iou:.4f}", f"{100 * correct:.2f}", shown(streaming, 4))
        table.add_row(cell, str(count), f"{size / 1e3:.1f}", *shares, f"{p50:.1f}")
    return table
