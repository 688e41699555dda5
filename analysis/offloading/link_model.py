"""Models the latency of remote frames over other links, and the link with which they take a given time."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from analysis.statistics.bootstrap import Floats

BANDWIDTHS_MBPS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
DELAYS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_BITS_PER_MS = 1000.0  # One Mbit/s.


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Frames sent over a link whose bandwidth and delay are the same in both directions.

        total = processing + 2 · delay + 8 · (bytes_up + bytes_down) / bandwidth

    The model assumes that frames do not queue for the link (one frame in flight, or a bit rate below the bandwidth), that
    nothing is retransmitted, and that bandwidth and delay change nothing else. On narrower links, real latency is higher.
    """

    processing_ms: Floats  # Vehicle, cloud and broker, by frame.
    bits: Floats  # Request and reply, by frame.

    def p50_ms(self, bandwidth_mbps: float | None, delay_ms: float) -> float:
        """The median latency over the frames; a bandwidth of None is unlimited."""
        per_bit = 0.0 if bandwidth_mbps is None else 1 / (bandwidth_mbps * _BITS_PER_MS)
        return float(np.median(self.processing_ms + self.bits * per_bit)) + 2 * delay_ms

    def bandwidth_for(self, p50_ms: float, delay_ms: float) -> float | None:
        """The bandwidth in Mbit/s with which the median is `p50_ms`; None: it is higher with any bandwidth."""
        available_ms = p50_ms - 2 * delay_ms
        if float(np.median(self.processing_ms)) >= available_ms:
            return None
        # Upper limit of the search: at this time per bit, every frame takes longer than `p50_ms`.
        most = 2 * (available_ms - float(self.processing_ms.min())) / float(self.bits.min())
        per_bit = brentq(
            lambda each: float(np.median(self.processing_ms + self.bits * each)) - available_ms, 0, most, xtol=1e-15
        )
        return 1 / (float(per_bit) * _BITS_PER_MS)

    def delay_for(self, p50_ms: float, bandwidth_mbps: float | None) -> float | None:
        """The one-way delay in ms with which the median is `p50_ms`; None: it is higher without any delay."""
        available_ms = p50_ms - self.p50_ms(bandwidth_mbps, 0)
        return available_ms / 2 if available_ms >= 0 else None

    def curve(self) -> "Curve":
        """The medians over common links, for a chart."""
        medians = tuple(tuple(self.p50_ms(width, delay) for width in BANDWIDTHS_MBPS) for delay in DELAYS_MS)
        return Curve(BANDWIDTHS_MBPS, DELAYS_MS, medians)


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted medians: `p50_ms[delay][bandwidth]`."""

    bandwidths_mbps: tuple[float, ...]
    delays_ms: tuple[float, ...]
    p50_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class EstimatedLink:
    """The link of a remote run, estimated from its frames."""

    delay_ms: float  # One way.
    bandwidth_mbps: float | None  # None: no limit was detectable.

    @classmethod
    def measured(cls, crossings_ms: Floats, bits: Floats, broker_ms: float, probe_ms: float) -> "EstimatedLink":
        """Estimates delay and bandwidth.

        The delay is `probe_ms`, half the fastest round trip of a small message without the broker's share, unless a frame
        crossed faster; if it is nan, the delay is 0. The rest of the median crossing is transfer time.
        """
        fastest_ms = max(0.0, (float(crossings_ms.min()) - broker_ms) / 2)
        delay_ms = min(max(0.0, probe_ms), fastest_ms) if math.isfinite(probe_ms) else 0.0
        transfer_ms = float(np.median(crossings_ms)) - broker_ms - 2 * delay_ms
        bandwidth = float(np.median(bits)) / transfer_ms / _BITS_PER_MS if transfer_ms > 0 else None
        return cls(delay_ms, bandwidth)
