"""What `skylane model` shows: the models of a repository, what one answers, and how well it does."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cloud.models.repository import Repository
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard, Task
from shared.terminal_table import Table

if TYPE_CHECKING:  # They bring OpenCV and the bags' reader, which a list needs not.
    from modelling.evaluation.classification import ClassificationEvaluation
    from modelling.evaluation.detection import DetectionEvaluation
    from modelling.evaluation.segmentation import Evaluation
    from shared.messages.results import Result


def model_rows(repository: Repository) -> list[dict[str, Any]]:
    """Each model's facts; of one that is broken its name, and under `file` what is wrong.

    Raises:
        RepositoryError: there is no such repository.
    """
    return [_row(repository, name) for name in repository.names()]


def models_table(rows: list[dict[str, Any]], title: str) -> Table:
    """The models, a line each."""
    table = Table(title=title)
    for column in ("name", "format", "input", "classes", "MB"):
        table.add_column(column, justify="right" if column in ("classes", "MB") else "left", no_wrap=True)
    table.add_column("file")
    for row in rows:
        facts = (told(row.get(column)) for column in ("name", "format", "input", "classes", "MB"))
        table.add_row(*facts, f"{row['file']}{'' if row.get('trained', True) else ', untrained'}")
    return table


def evaluation_table(result: "Evaluation | DetectionEvaluation | ClassificationEvaluation", title: str) -> Table:
    """The figures of a model on a bag, whatever its task is."""
    match result.card.task:
        case Task.CLASSIFICATION:
            return _taken_table(cast("ClassificationEvaluation", result), title)
        case Task.DETECTION:
            return _object_table(cast("DetectionEvaluation", result), title)
        case _:
            return _confusion_table(cast("Evaluation", result), title)


def evaluation_line(result: "Evaluation | DetectionEvaluation | ClassificationEvaluation") -> str:
    """The same in one line."""
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
                f"boxes are the same from an overlap of 0.5 on; recall and precision at a score of "
                f"{found.score_threshold:g} · {found.frames} frames · {found.unmatched} without boxes{untrained}"
            )
        case _:
            masks = cast("Evaluation", result)
            return (
                f"mean IoU {masks.mean_iou:.4f} over the classes but `none` · pixel accuracy "
                f"{masks.confusion.pixel_accuracy:.4f} · {masks.frames} frames · {masks.unmatched} without labels"
                f"{untrained}"
            )


def result_table(result: "Result", card: ModelCard) -> Table:
    """What a model says of one picture."""
    from shared.messages.results import Classification, Detections, Tensors  # noqa: PLC0415  As above.

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


def told(value: object) -> str:
    """A fact as a word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "?" if value is None else str(value)


def _confusion_table(result: "Evaluation", title: str) -> Table:
    """Of each true class (row), how many percent were taken for which class (column)."""
    names, counts = result.card.labels.names, result.confusion.counts
    held = [i for i in range(len(names)) if counts[i].any() or counts[:, i].any()]
    table = Table(title=title, caption="true class by row, predicted class by column, %")
    table.add_column("true class")
    table.add_column("IoU", justify="right")
    for i in held:
        table.add_column(str(i), justify="right", no_wrap=True)
    iou = result.confusion.intersection_over_union()
    for i in held:
        shares = 100 * counts[i] / max(1, counts[i].sum())
        percents = (f"{shares[j]:.0f}" if counts[i, j] else "·" for j in held)
        table.add_row(f"{i:2} {names[i]}", f"{iou[i]:.3f}", *percents)
    return table


def _object_table(result: "DetectionEvaluation", title: str) -> Table:
    """Average precision, recall and precision by class and size."""
    table = Table(title=title, caption="size: root of the area from which a box counts, pixels of the input")
    for column in ("class", "size", "boxes", "AP", "recall", "precision"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, sizes in result.figures.items():
        for size, figures in sizes.items():
            values = (figures[key] for key in ("average_precision", "recall", "precision"))
            shown = ("?" if value is None else f"{value:.3f}" for value in values)
            table.add_row(name, size.removeprefix("from_").removesuffix("_px"), str(figures["truths"]), *shown)
    return table


def _taken_table(result: "ClassificationEvaluation", title: str) -> Table:
    """For what the frames were taken."""
    table = Table(title=title)
    table.add_column("taken for")
    table.add_column("frames", justify="right")
    for name, count in zip(result.card.labels.names, result.taken_for, strict=True):
        table.add_row(name, str(count))
    return table


def _scored(class_ids: Iterable[int], scores: Iterable[float], card: ModelCard) -> list[list[str]]:
    return [[card.labels.name_of(class_id), f"{score:.1%}"] for class_id, score in zip(class_ids, scores, strict=True)]


def _shares(mask: Any, card: ModelCard) -> list[list[str]]:
    """The share of the pixels of each class, the largest first; what a crop cut off is unseen."""
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
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return row | {"MB": round(sum(each.stat().st_size for each in files) / 1e6, 1), "file": "ok"}
