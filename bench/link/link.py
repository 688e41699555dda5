"""Emulates the link between a vehicle and its broker: the specification of a link, and a running emulator."""

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import Field

from bench.harness.child import BenchError, Child
from shared.config import Section

LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 60.0  # On a busy machine, a new process imports for seconds.


class LinkSpec(Section):
    """The properties of a link. "Up" is the direction from the client (the vehicle) to the target (the broker).

    Bandwidth counts payload and is shared by all connections, as on one radio. `bench/link/timing.py` describes how the times
    are computed. The default is a link without faults.
    """

    delay_ms: float = Field(default=0.0, ge=0, le=10_000, description="Minimum one-way delay in both directions.")
    delay_up_ms: float | None = Field(default=None, ge=0, le=10_000, description="As above, up only.")
    delay_down_ms: float | None = Field(default=None, ge=0, le=10_000, description="As above, down only.")
    jitter_ms: float = Field(default=0.0, ge=0, le=10_000, description="Mean time added to the delay.")
    bandwidth_mbps: float | None = Field(
        default=None, gt=0, le=100_000, description="Bandwidth in Mbit/s in both directions."
    )
    bandwidth_up_mbps: float | None = Field(default=None, gt=0, le=100_000, description="As above, up only.")
    bandwidth_down_mbps: float | None = Field(default=None, gt=0, le=100_000, description="As above, down only.")
    loss_percent: float = Field(
        default=0.0, ge=0, le=50, description="Share of TCP segments lost; TCP retransmits them, which takes time."
    )
    slice_bytes: int | None = Field(default=None, ge=1, description="Write in pieces of this size.")
    corrupt_per_mb: float = Field(default=0.0, ge=0, le=1e6, description="Flipped bits per million bytes.")
    half_open_after_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Time after which all bytes are discarded and no connection is closed.",
    )
    reset_after_s: float | None = Field(
        default=None, ge=0, le=86_400, description="Age at which a connection is reset."
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="Seed of jitter, loss and corruption.")

    def delay_s(self, *, up: bool) -> float:
        """The minimum delay of a direction."""
        own = self.delay_up_ms if up else self.delay_down_ms
        return (self.delay_ms if own is None else own) / 1e3

    def bytes_per_s(self, *, up: bool) -> float | None:
        """The bandwidth of a direction; None if unlimited."""
        own = self.bandwidth_up_mbps if up else self.bandwidth_down_mbps
        mbps = self.bandwidth_mbps if own is None else own
        return None if mbps is None else mbps * 1e6 / 8

    @property
    def round_trip_s(self) -> float:
        """The mean round trip of a byte that does not wait for others."""
        return self.delay_s(up=True) + self.delay_s(up=False) + 2 * self.jitter_ms / 1e3


# 4G: mean round trip 53 ms (Ofcom, "Measuring mobile broadband in the UK", 2014: 53.1 ms over four operators); bandwidths
# from Cellsmart's drive tests of 2022 in 51 countries (20 Mbit/s up) and Ofcom's "Mobile Matters" of 2023 (29.5 Mbit/s
# down, 44 with the best operator). 5G: 31 up and 242 down in the same drive tests; round trip 16 to 20 ms to a server in
# the same country (Ofcom, "Mobile Matters", 2024). These are means with good coverage; single places differ widely.
PROFILES = MappingProxyType(
    {
        "none": LinkSpec(),
        "4g": LinkSpec(delay_ms=22, jitter_ms=4.5, bandwidth_up_mbps=20, bandwidth_down_mbps=40),
        "5g": LinkSpec(delay_ms=8, jitter_ms=2, bandwidth_up_mbps=30, bandwidth_down_mbps=240),
        "lossy": LinkSpec(delay_ms=25, jitter_ms=5, bandwidth_mbps=20, loss_percent=2),
        "narrow": LinkSpec(delay_ms=50, jitter_ms=10, bandwidth_mbps=1),
    }
)


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


class Link(AbstractContextManager["Link"]):
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
        self._proxy = Child("bench.link.proxy", settings, title="the link's process")
        self.port: int = self._proxy.wait(_START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """The URL to which a node connects instead of the broker's."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the proxy's process."""
        return self._proxy.pid

    @property
    def bytes_up(self) -> int:
        """Bytes delivered to the target."""
        return self.counts().bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes delivered to clients."""
        return self.counts().bytes_down

    def counts(self) -> LinkCounts:
        """Returns the counts since the start; the last known ones if the proxy has ended or does not reply."""
        with suppress(BenchError):
            self._last = LinkCounts(**self._proxy.ask(None, self._reply_timeout_s))
        return self._last

    def set(self, spec: LinkSpec) -> None:
        """Changes the link. Bytes in transit keep their delivery time; `half_open_after_s` counts from now.

        Raises:
            BenchError: the proxy has ended, or does not reply; a stopped proxy applies the change when it continues.
        """
        self._proxy.ask(spec.model_dump(), self._reply_timeout_s)
        self.spec = spec

    def close(self) -> None:
        """Ends the proxy; open connections break."""
        self.counts()
        self._proxy.end()

    def __exit__(self, *_: object) -> None:
        self.close()
