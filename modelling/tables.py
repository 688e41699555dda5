"""The output tables of `skylane model list` and `skylane model run`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from modelling.conversion.derived_model import megabytes
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository
from shared.terminal_table import Table

if TYPE_CHECKING:  # It imports OpenCV, which `list` does not need.
    from shared.messages.results import Result


def model_rows(repository: Repository) -> list[dict[str, Any]]:
    """Returns each model's properties; for a broken model, its name and the error as `file`.

    Raises:
        SkylaneError: the repository does not exist.
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
        trained = "" if row.get("trained", True) else ", untrained"
        table.add_row(*map(Text, values), Text(f"{row['file']}{trained}"))
    return table


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
        table.add_row(*map(Text, row))  # Class names are no markup.
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
        stored = repository.find(name)
        manifest, card = stored.manifest, stored.card()
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
        "trained_on": card.trained_on,
        "sha256": card.sha256,
    }
    if manifest.remote is not None:
        return row | {"file": f"at {manifest.remote.address}"}
    try:
        path = stored.file()
    except SkylaneError as error:
        return row | {"file": str(error)}
    return row | {"MB": round(megabytes(path), 1), "file": "ok"}
