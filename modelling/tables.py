"""What `skylane model` shows: the models of a repository, and a confusion table."""

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from cloud.repository import Repository
from shared.errors import SkylaneError

if TYPE_CHECKING:  # It brings OpenCV and the bags' reader, which a list needs not.
    from modelling.evaluation import Evaluation

_TIGHT: dict[str, Any] = {"box": SIMPLE, "padding": (0, 1, 0, 0), "show_edge": False}


def model_rows(repository: Repository) -> list[dict[str, Any]]:
    """Each model's facts; of one that is broken its name, and under `file` what is wrong.

    Raises:
        RepositoryError: there is no such repository.
    """
    return [_row(repository, name) for name in repository.names()]


def models_table(rows: list[dict[str, Any]], title: str) -> Table:
    """The models, a line each."""
    table = Table(title=title, **_TIGHT)
    for column in ("name", "format", "input", "classes", "MB"):
        table.add_column(column, justify="right" if column in ("classes", "MB") else "left", no_wrap=True)
    table.add_column("file", overflow="fold")
    for row in rows:
        facts = (told(row.get(column)) for column in ("name", "format", "input", "classes", "MB"))
        table.add_row(*facts, f"{row['file']}{'' if row.get('trained', True) else ', untrained'}")
    return table


def confusion_table(result: "Evaluation", title: str) -> Table:
    """Of each true class (row), how many percent were taken for which class (column)."""
    names, counts = result.card.labels.names, result.confusion.counts
    held = [i for i in range(len(names)) if counts[i].any() or counts[:, i].any()]
    table = Table(title=title, caption="true class by row, predicted class by column, %", **_TIGHT)
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


def told(value: object) -> str:
    """A fact as a word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "?" if value is None else str(value)


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
    try:
        path = repository.file(name)
    except SkylaneError as error:
        return row | {"file": str(error)}
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return row | {"MB": round(sum(each.stat().st_size for each in files) / 1e6, 1), "file": "ok"}
