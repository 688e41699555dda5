"""The health file: a node renews it while it is online, so that a check only has to look at the file's age.

The containers' health checks need no connection to the broker that way, and no process of Python.
"""

from datetime import UTC, datetime
from pathlib import Path

import click

from shared import clock
from shared.errors import SkylaneError

_INTERVAL_S = 2.0  # Time between two renewals.
_FRESH_FOR_S = 10.0  # An older file belongs to a node that is gone or hangs; docker-compose.yml says the same.

health_file_option = click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File that is renewed every {_INTERVAL_S:g} s while this node is online, for health checks. [none]",
)


class HealthFileError(SkylaneError):
    """The health file cannot be written."""


class HealthFile:
    """A file that exists and is young only while its node is online."""

    def __init__(self, path: Path | None, *, interval_s: float = _INTERVAL_S) -> None:
        """Removes what an earlier process left. Without a path nothing is written.

        Raises:
            HealthFileError: the file cannot be written.
        """
        self._path = path
        self._interval_ns = round(interval_s * 1e9)
        self._renewed_ns: int | None = None  # None: there is no file.
        if path is not None:
            try:
                path.touch()
                path.unlink()
            except OSError as error:
                raise HealthFileError(
                    f"the health file {path} cannot be written ({error.strerror}): give another path with --health-file"
                ) from error

    def update(self, *, is_online: bool) -> None:
        """Renews the file of a node that is online, removes that of one that is not. Call it every few seconds."""
        if self._path is None:
            return
        if not is_online:
            self.remove()
            return
        now_ns = clock.now_ns()
        if self._renewed_ns is None or now_ns - self._renewed_ns >= self._interval_ns:
            try:
                self._path.touch()
            except OSError:  # A full disk must not end the node: the file ages, and the check fails.
                return
            self._renewed_ns = now_ns

    def remove(self) -> None:
        """Removes the file: its node is not online."""
        if self._path is not None and self._renewed_ns is not None:
            self._renewed_ns = None
            try:
                self._path.unlink(missing_ok=True)
            except OSError:  # It ages instead.
                return


def is_fresh(path: Path) -> bool:
    """Whether the node that writes this file is online."""
    try:
        # The system's clock, by which file times are set; it may have been stepped since ours was anchored.
        return datetime.now(UTC).timestamp() - path.stat().st_mtime < _FRESH_FOR_S
    except FileNotFoundError:
        return False
