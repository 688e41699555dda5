"""A TCP port that nobody listens on."""

import socket


def free_port() -> int:
    """A free port of this machine; it was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
