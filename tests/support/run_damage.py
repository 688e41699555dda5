"""Damage done to the files of a run, as disks, editors and bugs do it."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.runlog.latency_log import COLUMNS, CSV_NAME
from shared.runlog.run_manifest import MANIFEST_NAME


def lines(folder: Path, name: str = CSV_NAME) -> list[str]:
    """The lines of a file, the header first, without their ends."""
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def write(folder: Path, text: list[str], name: str = CSV_NAME) -> None:
    """Write lines back, each with its end."""
    (folder / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of the log by column; the first one stands on line 2."""
    return list(csv.DictReader(lines(folder)))


def line_of(folder: Path, outcome: str) -> int:
    """The line of the last frame of an outcome: not the first, which is special in many ways."""
    return max(place for place, row in enumerate(rows(folder), start=2) if row["outcome"] == outcome)


def change(folder: Path, line: int, **cells: str | Callable[[str], str]) -> None:
    """Put other text, or what a function makes of it, into cells of one line."""
    text = lines(folder)
    fields = dict(zip(COLUMNS, next(csv.reader([text[line - 1]])), strict=True))
    for column, new in cells.items():
        fields[column] = new if isinstance(new, str) else new(fields[column])
    changed = io.StringIO()
    csv.DictWriter(changed, COLUMNS, lineterminator="").writerow(fields)
    text[line - 1] = changed.getvalue()
    write(folder, text)


def change_manifest(folder: Path, **facts: Any) -> None:
    """Put other facts into the manifest; None takes one away."""
    path = folder / MANIFEST_NAME
    manifest = json.loads(path.read_text()) | facts
    path.write_text(json.dumps({name: fact for name, fact in manifest.items() if fact is not None}))


def later(by_ns: int) -> Callable[[str], str]:
    """Moves a stamp."""
    return lambda stamp: str(int(stamp) + by_ns)


def longer(by_ns: int) -> Callable[[str], str]:
    """Lengthens a duration in milliseconds, to the nanosecond."""

    def lengthen(text: str) -> str:
        nanoseconds = int(text.replace(".", "")) + by_ns
        return f"{nanoseconds // 1_000_000}.{nanoseconds % 1_000_000:06d}"

    return lengthen
