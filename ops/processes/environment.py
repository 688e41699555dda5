"""What a benchmark runs in: its scratch folder, free TCP ports, and the synthetic bag that it uses by default."""

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

OnStep = Callable[[str], None]  # Receives a description of the next step.


class BenchRun(ExitStack):
    """A block for which a benchmark runs; `enter_context` adds what ends with it."""

    def __init__(self, on_step: OnStep = lambda _: None) -> None:
        """`on_step` displays the progress."""
        super().__init__()
        self.step = on_step
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))  # Empty.


def free_port() -> int:
    """Returns a TCP port on which nothing listens at the moment."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Returns different free TCP ports; repeated calls of `free_port` may return the same port twice."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
