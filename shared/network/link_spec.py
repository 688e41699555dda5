"""The properties of a link between a vehicle and its broker, and predefined ones, which `ops.link` emulates."""

from types import MappingProxyType

from pydantic import Field

from shared.config import Section


class LinkSpec(Section):
    """The properties of a link. "Up" is the direction from the client (the vehicle) to the target (the broker).

    Bandwidth counts payload and is shared by all connections, as on one radio. `ops/link/timing.py` describes how the times
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
        default=0.0, ge=0, le=50, description="Share of TCP segments lost and sent again, in percent."
    )
    slice_bytes: int | None = Field(default=None, ge=1, description="Write in pieces of this size.")
    corrupt_per_mb: float = Field(default=0.0, ge=0, le=1e6, description="Flipped bits per million bytes.")
    half_open_after_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Time after which all bytes are silently discarded.",
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
