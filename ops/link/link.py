"""Runs the emulated link between a vehicle and its broker in a child process.

`proxy` forwards the bytes there, `timing` computes delay and loss.
"""

from contextlib import suppress
from dataclasses import dataclass

from ops.processes.child import BenchError, Child
from shared.network.link_spec import LinkSpec

LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 60.0  # On a busy machine, a new process imports for seconds.


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """Counts of a link since its start."""

    bytes_up: int = 0  # Bytes delivered to the target.
    bytes_down: int = 0  # Bytes delivered to clients.
    connections: int = 0
    connections_open: int = 0
    refused: int = 0  # Connections that failed because the target did not listen, or there were too many.
    resets: int = 0
    segments_lost: int = 0
    bits_flipped: int = 0
    bytes_swallowed: int = 0
    releases: int = 0  # Pieces that were delayed.
    late_p50_ms: float | None = None  # Delivery after the computed time, over the last two thousand pieces.
    late_p99_ms: float | None = None


class Link(Child):
    """A TCP proxy in a child process, so that it does not slow down the nodes on either side.

    It listens on IPv4 loopback by default, and ends with the `with` block or with this process. Thread-safe.
    """

    host = LOOPBACK

    def __init__(
        self, spec: LinkSpec, to_host: str, to_port: int, listen_port: int = 0, *, reply_timeout_s: float = 5.0
    ) -> None:
        """Starts a link to `to_host`:`to_port`, which need not be reachable yet; `listen_port` 0 selects a free port.

        `reply_timeout_s`: timeout of requests to the proxy.

        Raises:
            BenchError: the port is in use.
        """
        self.spec = spec
        self._last = LinkCounts()
        self._reply_timeout_s = reply_timeout_s
        settings = {"spec": spec.model_dump(), "to": (to_host, to_port), "listen": (LOOPBACK, listen_port)}
        super().__init__("ops.link.proxy", settings, title="the link's process")
        self.port: int = self.wait(_START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """The URL to which a node connects instead of the broker's."""
        return f"mqtt://{self.host}:{self.port}"

    def counts(self) -> LinkCounts:
        """Returns the counts since the start; the last known ones if the proxy has ended or does not reply."""
        with suppress(BenchError):
            self._last = LinkCounts(**self.ask(None, self._reply_timeout_s))
        return self._last

    def set(self, spec: LinkSpec) -> None:
        """Changes the link. Bytes in transit keep their delivery time; `half_open_after_s` counts from now.

        Raises:
            BenchError: the proxy has ended, or does not reply; a stopped proxy applies the change when it continues.
        """
        self.ask(spec.model_dump(), self._reply_timeout_s)
        self.spec = spec

    def close(self) -> None:
        """Ends the proxy; open connections break."""
        self.counts()
        self.kill()

    def __exit__(self, *_: object) -> None:
        self.close()
