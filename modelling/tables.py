"""The output tables of `skylane model`: models of a repository, results of a run, and evaluations."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cloud.models.repository import Repository
from modelling.conversion.derived_manifest import megabytes
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard, Task
from shared.terminal_table import Table

if TYPE_CHECKING:  # They import OpenCV and the bag reader, which `list` does not need.
    from modelling.evaluation.classification import ClassificationEvaluation
    from modelling.evaluation.detection import DetectionEvaluation
    from modelling.evaluation.segmentation import SegmentationEvaluation
    from shared.messages.results import Result


def model_rows(repository: Repository) -> list[dict[str, Any]]:
    """Returns each model's properties; for a broken model, its name and the error as `file`.

    Raises:
        RepositoryError: the repository does not exist.
    """
    return [_row(repository, name) for name in repository.names()]


def models_table(rows: list[dict[str, Any]], title: str) -> Table:
    """Returns a table with one line per model."""
    table = Table(title=title)
    columns = ("name", "format", "input", "classes", "MB")
    for column in columns:
        table.add_column(column, justify="right" if column in ("classes", "MB") else "left", no_wrap=True)
    table.add_column("file")
    for row in rows:
        values = ("?" if (value := row.get(column)) is None else str(value) for column in columns)
        table.add_row(*values, f"{row['file']}{'' if row.get('trained', True) else ', untrained'}")
    return table


def evaluation_table(
    result: "SegmentationEvaluation | DetectionEvaluation | ClassificationEvaluation", title: str
) -> Table:
    """Returns the table of an evaluation."""
    match result.card.task:
        case Task.CLASSIFICATION:
            return _classification_table(cast("ClassificationEvaluation", result), title)
        case Task.DETECTION:
            return _detection_table(cast("DetectionEvaluation", result), title)
        case _:
            return _confusion_table(cast("SegmentationEvaluation", result), title)


def evaluation_line(result: "SegmentationEvaluation | DetectionEvaluation | ClassificationEvaluation") -> str:
    """Returns the summary line of an evaluation."""
    untrained = "" if result.card.trained else " (untrained weights)"
    match result.card.task:
        case Task.CLASSIFICATION:
            classes = cast("ClassificationEvaluation", result)
            return (
                f"accuracy {classes.accuracy:.4f} for {classes.truth} · {classes.frames} frames · "
                f"{classes.unreadable} unreadable{untrained}"
            )
        case Task.DETECTION:
            found = cast("DetectionEvaluation", result)
            return (
                f"boxes match from an IoU of 0.5; recall and precision at a score of "
                f"{found.score_threshold:g} · {found.frames} frames · {found.unmatched} without boxes{untrained}"
            )
        case _:
            masks = cast("SegmentationEvaluation", result)
            return (
                f"mean IoU {masks.mean_iou:.4f} over the classes except `none` · pixel accuracy "
                f"{masks.confusion.pixel_accuracy:.4f} · {masks.frames} frames · {masks.unmatched} without labels"
                f"{untrained}"
            )


def result_table(result: "Result", card: ModelCard) -> Table:
    """Returns a model's result for one image as a table."""
    from shared.messages.results import Classification, Detections, Tensors  # noqa: PLC0415  See TYPE_CHECKING.

    table = Table()
    columns: tuple[str, ...]
    match result:
        case Classification():
            columns, rows = ("class", "score"), _scored(result.class_ids, result.scores, card)
        case Detections():
            columns = ("class", "score", "x1", "y1", "x2", "y2")
            corners = [[f"{edge:.0f}" for edge in box] for box in result.boxes.tolist()]
            named = _scored(result.class_ids.tolist(), result.scores.tolist(), card)
            rows = [[*name, *box] for name, box in zip(named, corners, strict=True)]
        case Tensors():
            columns = ("tensor", "shape", "type")
            rows = [
                [name, "×".join(map(str, values.shape)), str(values.dtype)] for name, values in result.values.items()
            ]
        case _:
            columns, rows = ("class", "share"), _shares(result, card)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _confusion_table(result: "SegmentationEvaluation", title: str) -> Table:
    """Returns the predicted classes (columns) of each true class (row) in percent."""
    names, counts = result.card.labels.names, result.confusion.counts
    present = [i for i in range(len(names)) if counts[i].any() or counts[:, i].any()]
    table = Table(title=title, caption="true class by row, predicted class by column, %")
    table.add_column("true class")
    table.add_column("IoU", justify="right")
    for i in present:
        table.add_column(str(i), justify="right", no_wrap=True)
    iou = result.confusion.intersection_over_union()
    for i in present:
        shares = 100 * counts[i] / max(1, counts[i].sum())
        percents = (f"{shares[j]:.0f}" if counts[i, j] else "·" for j in present)
        table.add_row(f"{i:2} {names[i]}", f"{iou[i]:.3f}", *percents)
    return table


def _detection_table(result: "DetectionEvaluation", title: str) -> Table:
    """Returns average precision, recall and precision by class and size."""
    table = Table(title=title, caption="size: root of the area of the smallest counted box, in pixels of the input")
    for column in ("class", "size", "boxes", "AP", "recall", "precision"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, sizes in result.metrics.items():
        for size, metrics in sizes.items():
            values = (metrics[key] for key in ("average_precision", "recall", "precision"))
            shown = ("?" if value is None else f"{value:.3f}" for value in values)
            table.add_row(name, size.removeprefix("from_").removesuffix("_px"), str(metrics["truths"]), *shown)
    return table


def _classification_table(result: "ClassificationEvaluation", title: str) -> Table:
    """Returns the number of frames by predicted class."""
    table = Table(title=title)
    table.add_column("taken for")
    table.add_column("frames", justify="right")
    for name, count in zip(result.card.labels.names, result.taken_for, strict=True):
        table.add_row(name, str(count))
    return table


def _scored(class_ids: Iterable[int], scores: Iterable[float], card: ModelCard) -> list[list[str]]:
    return [[card.labels.name_of(class_id), f"{score:.1%}"] for class_id, score in zip(class_ids, scores, strict=True)]


def _shares(mask: Any, card: ModelCard) -> list[list[str]]:
    """Returns the share of pixels of each class, largest first; pixels outside of the model's crop are "unseen"."""
    counts = np.bincount(mask.ravel(), minlength=256)
    names = card.labels.names
    return [
        [names[class_id] if class_id < len(names) else "unseen", f"{counts[class_id] / mask.size:.1%}"]
        for class_id in np.argsort(-counts).tolist()
        if counts[class_id]
    ]


def _row(repository: Repository, name: str) -> dict[str, Any]:
    try:
        manifest, card = repository.manifest(name), repository.card(name)
    except SkylaneError as error:
        return {"name": name, "file": str(error)}
    row = {
        "name": name,
        "version": card.version,
        "format": manifest.format,
        "input": f"{card.height}×{card.width} {card.layout}",
        "dtype": manifest.input.dtype,
        "classes": len(card.labels.names),
        "trained": card.trained,
        "sha256": card.sha256,
    }
    if manifest.remote is not None:
        return row | {"file": f"at {manifest.remote.address}"}
    try:
        path = repository.file(name)
    except SkylaneError as error:
        return row | {"file": str(error)}
    return row | {"MB": round(megabytes(path), 1), "file": "ok"}
