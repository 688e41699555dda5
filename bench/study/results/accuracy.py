"""Compares the masks that the vehicles of a run received with the true labels of their bag."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.study.plan.study_plan import StudyPlan
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.segmentation import EvaluationError, labelled_camera
from rosbag_tools.messages.ros_types import read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.records import Message
from shared.models.repository import Repository
from shared.terminal_table import Table

MASK_SINK = "bag"  # The vehicles' sink: masks at the size and with the stamps of their frames.
_MASKS = "masks_bag"  # What it writes into the folder of a vehicle's run.
_Mask = npt.NDArray[np.uint8]
_END: tuple[int, _Mask | None] = (1 << 63, None)  # Follows the last labels, later than every stamp.


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


def compare_masks(folder: Path, bag: Path, names: Sequence[str]) -> dict[str, Any]:
    """Compares all masks in `folder`, also those of warm-up frames, with the true labels in `bag`; then removes them.

    The masks are as large as the frames and would fill the disk. Returns columns of the table of runs: the mean IoU over
    the classes in the true labels except `none`, the share of correct pixels, and the number of masks. `names` are those
    of the model's classes; pixels of other classes are not compared.

    Raises:
        SkylaneError: A bag cannot be read, or no mask has labels of its timestamp and size.
    """
    camera, labels, _ = labelled_camera(bag, None)
    masks = "/" + camera.strip("/").removesuffix("/image_raw") + "/masks"
    confusion, compared, received = Confusion.empty(len(names)), 0, 0
    for vehicle in sorted(folder.glob(f"vehicle-*/{_MASKS}")):
        for mask, truth in _pairs(_images(vehicle, masks), bag, labels):
            received += 1
            if truth is not None and truth.shape == mask.shape:
                known = (truth < len(names)) & (mask < len(names))
                confusion = confusion.with_masks(truth[known], mask[known])
                compared += 1
        rmtree(vehicle)
    if received and not compared:
        raise EvaluationError(f"{bag}: no image on {camera} has labels of its timestamp and size on {labels}")
    values = {"mean_iou": confusion.mean_iou(names), "pixel_accuracy": confusion.pixel_accuracy}
    return {"masks_compared": compared, **({name: value for name, value in values.items() if not np.isnan(value)})}


def accuracy_table(runs: pd.DataFrame) -> Table:
    """Returns a table of the cells with the means of their finished runs; `runs` is the table of runs."""
    table = Table("cell", title="Accuracy, bytes and latency: means of the runs")
    for heading in ("runs", "kB per frame", "mean IoU", "pixels correct %", "p50 ms"):
        table.add_column(heading, justify="right")
    cells = runs[runs["mean_iou"].notna()].groupby("cell")
    means = cells[["bytes_per_frame", "mean_iou", "pixel_accuracy", "total_p50_ms"]].mean().assign(runs=cells.size())
    for cell, size, iou, correct, p50, count in means.sort_values("bytes_per_frame").itertuples():
        table.add_row(cell, str(count), f"{size / 1e3:.1f}", f"{iou:.4f}", f"{100 * correct:.2f}", f"{p50:.1f}")
    return table


def _images(path: Path, topic: str) -> Iterator[tuple[int, _Mask]]:
    """Yields the stamp and the pixels of every readable image on a topic; none if there is no such topic."""
    with Bag(path) as bag:
        for message in bag.messages({topic}):
            if isinstance(message, Message):
                yield read_stamp(message), np.asarray(decode(message)[0], np.uint8)


def _pairs(masks: Iterable[tuple[int, _Mask]], bag: Path, topic: str) -> Iterator[tuple[_Mask, _Mask | None]]:
    """Yields each mask with the labels of its stamp, or with None.

    Masks come in the order of the bag, which vehicles play repeatedly: an earlier stamp starts its labels again.
    """
    truths: Iterator[tuple[int, _Mask | None]] = iter(())
    at_ns, truth = _END
    for stamp_ns, mask in masks:
        if stamp_ns < at_ns:
            truths = iter(_images(bag, topic))
            at_ns, truth = next(truths, _END)
        while at_ns < stamp_ns:
            at_ns, truth = next(truths, _END)
        yield mask, truth if at_ns == stamp_ns else None
