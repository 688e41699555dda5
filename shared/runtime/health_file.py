"""The health file: a node touches it while it is online, so that a health check only reads the file's age.

Container health checks then need neither a broker connection nor a Python process.
"""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from shared import clock
from shared.errors import SkylaneError
from shared.files import check_file, create_file

UPDATE_INTERVAL_S = 2.0  # Time between two updates.
_FRESH_FOR_S = 10.0  # The node of an older file is gone or hangs; docker-compose.yml uses the same value.


class HealthFile:
    """A file that exists and is recent only while its node is online."""

    def __init__(self, path: Path | None, *, interval_s: float = UPDATE_INTERVAL_S) -> None:
        """Removes a file of an earlier process. If `path` is None, nothing is written.

        Raises:
            SkylaneError: the file cannot be written.
        """
        self._path = path
        self._interval_ns = round(interval_s * 1e9)
        self._touched_ns: int | None = None  # None: there is no file.
        if path is not None:
            try:
                if path.exists():
                    check_file(path)  # A device would be removed.
                create_file(path).close()
                path.unlink()
            except OSError as error:
                raise SkylaneError(
                    f"the health file {path} cannot be written ({error.strerror}): give another path with --health-file"
                ) from error

    def update(self, *, is_online: bool) -> None:
        """Touches the file if the node is online, else removes it. Call it every few seconds."""
        if self._path is None:
            return
        if not is_online:
            self.remove()
            return
        now_ns = clock.now_ns()
        if self._touched_ns is None or now_ns - self._touched_ns >= self._interval_ns:
            with suppress(OSError):  # The node goes on; the file ages, so the check fails.
                try:
                    os.utime(self._path, follow_symlinks=False)
                except FileNotFoundError:
                    create_file(self._path).close()
                self._touched_ns = now_ns

    def remove(self) -> None:
        """Removes the file, as the node is not online."""
        if self._path is not None and self._touched_ns is not None:
            self._touched_ns = None
            with suppress(OSError):  # The file ages, so the check fails.
                self._path.unlink(missing_ok=True)


def is_fresh(path: Path) -> bool:
    """Returns whether the node that writes this file is online."""
    try:
        # File times follow the system clock, not `shared.clock`.
        return datetime.now(UTC).timestamp() - path.stat().st_mtime < _FRESH_FOR_S
    except FileNotFoundError:
        return False
