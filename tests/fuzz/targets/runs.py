"""A run's folder as a killed process or a bad disk left it, read and repaired. An input is one byte that picks the file."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.errors import SkylaneError
from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, LogWriter, Outcome, Row, outcomes, read_rows
from shared.runlog.lost_rows import LOST_NAME
from shared.runlog.repair import repair
from shared.runlog.run_manifest import MANIFEST_NAME, write_manifest

MAX_BYTES = 1 << 13

_FILES = (CSV_NAME, JOURNAL_NAME, MANIFEST_NAME, LOST_NAME)

_folder = Path(tempfile.mkdtemp(prefix="skylane-fuzz-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def _written() -> dict[str, bytes]:
    """The files of a run that was killed with a frame open."""
    folder = _folder / "whole"
    rows = [Row("car", "left", "s1", number, Outcome.ANSWERED) for number in range(3)]
    with LogWriter(folder) as log:
        for row in rows:
            log.open(row)
        log.close(rows[0])
    write_manifest(folder, {"state": "running", "frames": {}})
    (folder / LOST_NAME).write_bytes(b"from 000000000001 beyond 000000000000\n.a." + b"." * 60)
    return {name: (folder / name).read_bytes() for name in _FILES}


_WHOLE = _written()


def seeds() -> Iterator[bytes]:
    """Each file as it is written."""
    yield from (bytes([place]) + _WHOLE[name] for place, name in enumerate(_FILES))


def run(data: bytes) -> None:
    """Repair the run with one file replaced, and count its outcomes; anything but our own errors is a finding."""
    if not data:
        return
    folder = _folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in {**_WHOLE, _FILES[data[0] % len(_FILES)]: data[1:]}.items():
        (folder / name).write_bytes(content)
    with suppress(SkylaneError):
        repair(folder)
    with suppress(SkylaneError):
        outcomes(read_rows(folder))
