"""Fuzz target of a run's folder after a crash: reading and repair. The first byte of an input selects the file."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shared.errors import SkylaneError
from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, LatencyRow, LogWriter, Outcome, outcomes, read_rows
from shared.runlog.lost_rows import LOST_NAME
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, PresentedLog, PresentedRow, read_presented
from shared.runlog.repair import repair
from shared.runlog.run_manifest import MANIFEST_NAME, write_manifest

MAX_BYTES = 1 << 13

_FILES = (CSV_NAME, JOURNAL_NAME, MANIFEST_NAME, LOST_NAME, PRESENTED_NAME)

_folder = Path(tempfile.mkdtemp(prefix="skylane-fuzz-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def _killed_run() -> dict[str, bytes]:
    """Returns the files of a run that was killed while a frame was open."""
    folder = _folder / "whole"
    rows = [LatencyRow("car", "left", "s1", number, Outcome.ANSWERED) for number in range(3)]
    with LogWriter(folder) as log:
        for row in rows:
            log.open(row)
        log.close(rows[0])
    with PresentedLog(folder) as presented:
        presented.write(PresentedRow("left", "s1", 0, OutputOrigin.NONE, "no_result", 0, 1, 2, 3, processing_ns=4))
        presented.write(PresentedRow("left", "s1", 1, OutputOrigin.WARPED, "", 1, 2, 3, 4, 0, 1, 5, "quarter"))
    write_manifest(folder, {"state": "running", "frames": {}, "presenting": {"kind": "warp"}})
    (folder / LOST_NAME).write_bytes(b"from 000000000001 beyond 000000000000\n.a." + b"." * 60)
    return {name: (folder / name).read_bytes() for name in _FILES}


_WHOLE = _killed_run()


def seeds() -> Iterator[bytes]:
    """Yields each file unchanged."""
    yield from (bytes([index]) + _WHOLE[name] for index, name in enumerate(_FILES))


def run(data: bytes) -> None:
    """Repairs and reads the run with one file replaced; raises only on a bug."""
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
    with suppress(SkylaneError):
        list(read_presented(folder))
