"""Damages the files of a run like faulty disks, editors and bugs."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.runlog.latency_log import COLUMNS, CSV_NAME
from shared.runlog.run_manifest import MANIFEST_NAME

_DATA = Path(__file__).parents[1] / "data"
SCHEMA_3_RUN = _DATA / "run_schema_3"  # Recorded before frames could be reused.
SCHEMA_4_RUN = _DATA / "run_schema_4"  # Recorded before vehicles chose the worker of a frame.
EARLIER_RUNS = (SCHEMA_3_RUN, SCHEMA_4_RUN)


def lines(folder: Path, name: str = CSV_NAME) -> list[str]:
    """Returns the lines of a file without line ends; the first is the header."""
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def write(folder: Path, text: list[str], name: str = CSV_NAME) -> None:
    """Writes lines with line ends."""
    (folder / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")


def rows(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of the log by column; the first row is line 2."""
    return list(csv.DictReader(lines(folder)))


def line_of(folder: Path, outcome: str) -> int:
    """Returns the line of the last frame with an outcome; the first frame of a run is often special."""
    return max(line for line, row in enumerate(rows(folder), start=2) if row["outcome"] == outcome)


def change(folder: Path, line: int, **cells: str | Callable[[str], str]) -> None:
    """Replaces cells of one line by a text or by the result of a function of the old text."""
    text = lines(folder)
    fields = dict(zip(COLUMNS, next(csv.reader([text[line - 1]])), strict=True))
    for column, new in cells.items():
        fields[column] = new if isinstance(new, str) else new(fields[column])
    changed = io.StringIO()
    csv.DictWriter(changed, COLUMNS, lineterminator="").writerow(fields)
    text[line - 1] = changed.getvalue()
    write(folder, text)


def manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest."""
    return dict(json.loads((folder / MANIFEST_NAME).read_text()))


def change_manifest(folder: Path, **facts: Any) -> None:
    """Replaces values of the manifest; None removes a key."""
    path = folder / MANIFEST_NAME
    changed = manifest(folder) | facts
    path.write_text(json.dumps({name: fact for name, fact in changed.items() if fact is not None}))


def later(by_ns: int) -> Callable[[str], str]:
    """Returns a function that moves a timestamp."""
    return lambda stamp: str(int(stamp) + by_ns)


def longer(by_ns: int) -> Callable[[str], str]:
    """Returns a function that lengthens a duration in milliseconds."""

    def lengthen(text: str) -> str:
        nanoseconds = int(text.replace(".", "")) + by_ns
        return f"{nanoseconds // 1_000_000}.{nanoseconds % 1_000_000:06d}"

    return lengthen
