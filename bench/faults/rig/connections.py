"""Connections as the kernel and the broker tell of them: what a process holds, and how often a client came."""

import re
from contextlib import suppress
from pathlib import Path

from bench.faults.rig.rig import RigError

_ESTABLISHED = "01"  # As /proc/net/tcp writes a socket's state.
_STATE, _INODE = 3, 9  # Its columns.


def established(pid: int) -> frozenset[str]:
    """The TCP connections over IPv4 that a process holds, by their inodes, whatever network namespace it lives in."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # Closed meanwhile.
            held.add(descriptor.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return frozenset(row[_INODE] for row in rows if row[_STATE] == _ESTABLISHED and row[_INODE] in held)


def connects(broker_log: Path, client: str) -> int:
    """How often a client whose id is `client`, or begins with it and a hyphen, was let in by a Mosquitto."""
    log = broker_log.read_text(encoding="utf-8", errors="replace")
    return len(re.findall(rf"New client connected from \S+ as {re.escape(client)}(?:-\S+)? ", log))


def reconnects(broker_log: Path, client: str) -> int:
    """How often it came again.

    Raises:
        RigError: it never came, or the log does not tell.
    """
    came = connects(broker_log, client)
    if not came:
        raise RigError(f"{broker_log.name} does not tell that {client} was ever let in")
    return came - 1
