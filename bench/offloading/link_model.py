"""What remote frames would take over another link, and the link at which they take as long as something else."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from bench.statistics.bootstrap import Floats

BANDWIDTHS_MBPS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
DELAYS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_BITS_PER_MS = 1000.0  # Of one Mbit/s.


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Frames sent over a link of some bandwidth and delay, the same in both directions.

    A frame takes what it takes besides the link, twice the delay, and its bits over the bandwidth:

        total = besides + 2 · delay + 8 · (bytes_up + bytes_down) / bandwidth

    It is assumed that frames do not queue for the link (one in flight, or fewer bits a second than it carries: below
    that the truth is worse), that nothing is lost and sent again, and that bandwidth and delay change nothing else.
    """

    besides_ms: Floats  # Vehicle, cloud and broker.
    bits: Floats  # Both messages.

    def p50_ms(self, bandwidth_mbps: float | None, delay_ms: float) -> float:
        """The median over the frames; None: no limit to the bandwidth."""
        per_bit = 0.0 if bandwidth_mbps is None else 1 / (bandwidth_mbps * _BITS_PER_MS)
        return float(np.median(self.besides_ms + self.bits * per_bit)) + 2 * delay_ms

    def bandwidth_for(self, p50_ms: float, delay_ms: float) -> float | None:
        """The bandwidth (Mbit/s) that brings the median to `p50_ms`; None: it stays above on any."""
        room = p50_ms - 2 * delay_ms
        if float(np.median(self.besides_ms)) >= room:
            return None
        # With so much time a bit, every single frame takes longer than `p50_ms`, whatever is lost in rounding.
        most = 2 * (room - float(self.besides_ms.min())) / float(self.bits.min())
        per_bit = brentq(lambda each: float(np.median(self.besides_ms + self.bits * each)) - room, 0, most, xtol=1e-15)
        return 1 / (float(per_bit) * _BITS_PER_MS)

    def delay_for(self, p50_ms: float, bandwidth_mbps: float | None) -> float | None:
        """The delay of one direction (ms) that brings the median to `p50_ms`; None: it is above without any."""
        room = p50_ms - self.p50_ms(bandwidth_mbps, 0)
        return room / 2 if room >= 0 else None

    def curve(self) -> "Curve":
        """The median over links as they are met, for a chart."""
        medians = tuple(tuple(self.p50_ms(width, delay) for width in BANDWIDTHS_MBPS) for delay in DELAYS_MS)
        return Curve(BANDWIDTHS_MBPS, DELAYS_MS, medians)


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted medians: `p50_ms[delay][bandwidth]`."""

    bandwidths_mbps: tuple[float, ...]
    delays_ms: tuple[float, ...]
    p50_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Link:
    """The link a remote run seems to have had."""

    delay_ms: float  # One way.
    bandwidth_mbps: float | None  # None: too quick to be told from none at all.

    @classmethod
    def measured(cls, crossings_ms: Floats, bits: Floats, broker_ms: float, probe_ms: float) -> "Link":
        """Tell delay and bandwidth apart.

        `probe_ms`: half a round trip of the quickest small message, the broker's share taken off (nan: not known, then
        the whole crossing is put down to bandwidth). It is the delay, unless the quickest frame crossed faster. What
        else the median crossing holds is transfer.
        """
        quickest = max(0.0, (float(crossings_ms.min()) - broker_ms) / 2)
        delay_ms = min(max(0.0, probe_ms), quickest) if math.isfinite(probe_ms) else 0.0
        transfer_ms = float(np.median(crossings_ms)) - broker_ms - 2 * delay_ms
        bandwidth = float(np.median(bits)) / transfer_ms / _BITS_PER_MS if transfer_ms > 0 else None
        return cls(delay_ms, bandwidth)
