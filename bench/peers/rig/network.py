"""Runs the whole bench in a network namespace, because some peers listen on every address without authentication."""

import os
import subprocess
import sys

VARIABLE = "SKYLANE_PEERS_NETWORK"  # Set in the process inside the namespace.
_ENTER = ("unshare", "--net", "--")
_UP = 'ip link set lo up && exec "$@"'


def enter() -> None:
    """Executes this process again in a network namespace with only a loopback device.

    Returns if that was done already or is not possible. Call it before opening any file or socket.
    """
    if is_own() or not _is_possible():
        return
    command = [*_ENTER, "sh", "-c", _UP, "sh", sys.executable, *sys.orig_argv[1:]]
    os.execvpe(command[0], command, {**os.environ, VARIABLE: "own"})  # noqa: S606 - itself.


def is_own() -> bool:
    """Whether this process is in its own network namespace."""
    return VARIABLE in os.environ


def _is_possible() -> bool:
    """Whether `unshare` is installed and permitted, which takes root."""
    try:
        return not subprocess.run([*_ENTER, "sh", "-c", _UP, "sh", "true"], capture_output=True, check=False).returncode
    except OSError:
        return False
