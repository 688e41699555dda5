"""TCP ports that nobody listens on."""

import socket
from contextlib import ExitStack


def free_port() -> int:
    """A free port of this machine; it was free a moment ago."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """So many of them, each another: one asked for after the other would now and then be the same."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
