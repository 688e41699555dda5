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
    if is_own() or _refusal() is not None:
        return
    command = [*_ENTER, "sh", "-c", _UP, "sh", sys.executable, *sys.orig_argv[1:]]
    os.execvpe(command[0], command, {**os.environ, VARIABLE: "own"})  # noqa: S606 - itself.


def is_own() -> bool:
    """Whether this process is in its own network namespace."""
    return VARIABLE in os.environ


def _refusal() -> str | None:
    """Returns why a namespace is not possible; None if it is."""
    try:
        done = subprocess.run([*_ENTER, "sh", "-c", _UP, "sh", "true"], capture_output=True, text=True, check=False)
    except OSError:
        return f"no {_ENTER[0]}: apt-get install util-linux"
    return f"'{' '.join(_ENTER)}' failed ({done.stderr.strip()}): it takes root" if done.returncode else None
