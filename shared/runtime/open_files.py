"""The limit of open files of this process, and how many connections its servers may hold below it."""

import resource
from collections.abc import Mapping

from shared.errors import SkylaneError

_WANTED = 16_384  # The usual soft limit of 1,024 is less than the connections of one gRPC server.
_OWN = 64  # Files that a node itself needs at least: models, logs, the broker, processes of engines,
_OWN_SHARE = 8  # and this part of the limit if that is more.
_FEWEST = 4  # Connections without which a server is useless.


class OpenFilesError(SkylaneError):
    """The limit of open files leaves too few files for connections."""


def raise_file_limit() -> int:
    """Raises the soft limit to what servers need, within the hard limit of the process; returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max(wanted, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connection_limits(wanted: Mapping[str, int], files: int) -> dict[str, int]:
    """Divides the `files` that this process may open, less those that it needs itself, among its servers.

    `wanted` is the largest useful number of connections by server; none gets more.

    Raises:
        OpenFilesError: a server would get almost none.
    """
    free = files - max(_OWN, files // _OWN_SHARE)
    limits: dict[str, int] = {}
    for name, most in sorted(wanted.items(), key=lambda item: item[1]):  # A small server leaves more for the others.
        limits[name] = min(most, free // (len(wanted) - len(limits)))
        free -= limits[name]
        if limits[name] < min(_FEWEST, most):
            needed = _OWN + 2 * _FEWEST * len(wanted)
            raise OpenFilesError(
                f"this process may open {files} files, too few for connections ({name}): allow at least {needed}, "
                "better 1024 (ulimit -n, LimitNOFILE of systemd, ulimits of a container)"
            )
    return limits
