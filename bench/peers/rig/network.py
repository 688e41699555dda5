"""A network of its own for the whole bench: some peers listen on every address of the machine, and ask nobody who calls."""

import os
import subprocess
import sys

VARIABLE = "SKYLANE_PEERS_NETWORK"  # Set in the process that is inside.
_ENTER = ("unshare", "--net", "--")
_UP = 'ip link set lo up && exec "$@"'


def enter() -> None:
    """Start this process anew, as the same process, in a network namespace that has a loopback device and nothing else.

    Comes back where that was done, or cannot be. Call it before anything is opened.
    """
    if is_own() or _refusal() is not None:
        return
    command = [*_ENTER, "sh", "-c", _UP, "sh", sys.executable, *sys.orig_argv[1:]]
    os.execvpe(command[0], command, {**os.environ, VARIABLE: "own"})  # noqa: S606 - itself.


def is_own() -> bool:
    """Whether this process has a network of its own."""
    return VARIABLE in os.environ


def _refusal() -> str | None:
    """Why there can be none; None where there can."""
    try:
        done = subprocess.run([*_ENTER, "sh", "-c", _UP, "sh", "true"], capture_output=True, text=True, check=False)
    except OSError:
        return f"no {_ENTER[0]}: apt-get install util-linux"
    return f"'{' '.join(_ENTER)}' failed ({done.stderr.strip()}): it takes root" if done.returncode else None
