"""Reads TCP connections from the kernel and counts client connections in the broker's log."""

import re
from contextlib import suppress
from pathlib import Path

from tests.support.faults.rig import RigError

_ESTABLISHED = "01"  # State of a socket in /proc/net/tcp.
_STATE, _INODE = 3, 9  # Columns of /proc/net/tcp.


def established(pid: int) -> frozenset[str]:
    """Returns the inodes of the established IPv4 TCP connections of a process, in any network namespace."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # The descriptor was closed.
            held.add(descriptor.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return frozenset(row[_INODE] for row in rows if row[_STATE] == _ESTABLISHED and row[_INODE] in held)


def reconnects(broker_log: Path, client: str) -> int:
    """Counts the connections of a client, whose id is `client` or begins with `client-`, after the first.

    Raises:
        RigError: the log has no connection of the client.
    """
    log = broker_log.read_text(encoding="utf-8", errors="replace")
    count = len(re.findall(rf"New client connected from \S+ as {re.escape(client)}(?:-\S+)? ", log))
    if not count:
        raise RigError(f"{broker_log.name} has no connection of {client}")
    return count - 1
