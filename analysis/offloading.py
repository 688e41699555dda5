"""Is offloading worth it: a remote run against a local one, the link at which it starts to pay, and the price of footage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from analysis.logs.run_log import RunLog, frames_with_result, result_times_ns
from analysis.statistics.bootstrap import Floats
from analysis.statistics.description import IntervalEstimate, describe
from shared.errors import SkylaneError
from shared.runlog.latency_log import WITH_RESULT, Outcome

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


_FRAME = ("camera", "frame_index", "nth")
_CROSSED = ("total_ms", "crossing_ms")
_CODEC = ("encoded_ms", "decoded_ms", "mask_encoded_ms", "mask_decoded_ms")
_BYTES = ("bytes_up", "bytes_down")
_PACE = ("closed_loop", "window", "arrivals", "arrival_rate_hz", "rate", "queue", "burst", "topics")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OffloadingError(SkylaneError):
    """Two runs cannot be compared."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Offloading compared with one kind of local inference; milliseconds, over the frames that both runs answered."""

    name: str
    p50: IntervalEstimate  # Latency of local inference.
    difference: IntervalEstimate  # Median of (remote - local), frame by frame; below 0: offloading is faster.
    share_faster: float  # Share of the frames that were faster remotely, 0 to 1.
    bandwidth_mbps: float | None  # Offloading is faster above it, at the remote run's delay; None: never.
    delay_ms: float | None  # Offloading is faster below this one-way delay, at the remote run's bandwidth; None: never.
    reason: str  # The reason why one of the two is None, or empty.
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the comparison, and the link at which the faster side changes."""

    local_name: str
    remote_name: str
    sentence: str  # Comparison with the local run as it was.
    frames: int  # Answered in both runs.
    remote_p50: IntervalEstimate
    local: Alternative  # A worker on the vehicle; frames pass through codec and broker.
    in_process: Alternative  # The model in the vehicle node's process: the lower limit of local latency.
    local_unanswered: float  # Share of the frames read.
    remote_unanswered: float
    link_delay_ms: float  # One-way delay of the remote run's link, estimated from its frames.
    link_bandwidth_mbps: float | None  # None: no limit was detectable.
    broker_ms: float
    modelled_p50_ms: float  # Median of the model for that link; if it is far from remote_p50, the model does not hold.
    curve: Curve
    caveats: tuple[str, ...]


def worth(local: RunLog, remote: RunLog, *, seed: int = 0) -> Verdict:
    """Compares a remote run with a local one, frame by frame; frames are matched by camera and place in the source.

    The local run's worker and broker ran on the vehicle. Its median crossing is therefore the time of a broker without a
    link, and over any other link the remote frames are expected to take (see `LinkModel`)

        total = (total - crossing) + broker + 2 · delay + 8 · (bytes_up + bytes_down) / bandwidth

    A vehicle that infers in its own process needs neither broker nor codec: the local total without crossing, encoding and
    decoding is the lower limit of local latency.

    Raises:
        OffloadingError: the runs have different sources, or no frame was answered in both.
    """
    caveats = _caveats(local, remote)
    frames = _common_frames(local, remote)
    local_ms, remote_ms, remote_crossing_ms = (
        frames[name].to_numpy(np.float64) for name in ("total_ms_local", "total_ms_remote", "crossing_ms_remote")
    )
    broker_ms = float(frames["crossing_ms_local"].median())
    bits = 8 * _sum(frames, _BYTES, "remote")
    link = EstimatedLink.measured(remote_crossing_ms, bits, broker_ms, _fastest_ms(remote) - _fastest_ms(local))
    model = LinkModel(remote_ms - remote_crossing_ms + broker_ms, bits)
    in_process_ms = local_ms - _sum(frames, ("crossing_ms", *_CODEC), "local")
    unanswered = _unanswered(local), _unanswered(remote)
    alternatives = [
        _alternative(name, times_ms, remote_ms, model, link, seed=seed)
        for name, times_ms in (("the local worker", local_ms), ("the vehicle's own process", in_process_ms))
    ]
    return Verdict(
        local_name=local.name,
        remote_name=remote.name,
        sentence=f"{alternatives[0].sentence} {_unanswered_text(*unanswered)}",
        frames=len(frames),
        remote_p50=describe(remote_ms, seed=seed).p50,
        local=alternatives[0],
        in_process=alternatives[1],
        local_unanswered=unanswered[0],
        remote_unanswered=unanswered[1],
        link_delay_ms=link.delay_ms,
        link_bandwidth_mbps=link.bandwidth_mbps,
        broker_ms=broker_ms,
        modelled_p50_ms=model.p50_ms(link.bandwidth_mbps, link.delay_ms),
        curve=model.curve(),
        caveats=caveats,
    )


def _caveats(local: RunLog, remote: RunLog) -> tuple[str, ...]:
    """Returns the differences of the runs that limit the comparison; raises if their sources differ."""
    sources, models = (
        [run.manifest.get(part, {}).get("sha256") for run in (local, remote)] for part in ("source", "model")
    )
    if all(sources) and sources[0] != sources[1]:
        raise OffloadingError(
            f"{local.name} and {remote.name} played different sources ({sources[0][:12]} and {sources[1][:12]}): "
            "play the same one to both workers"
        )
    caveats = []
    if not all(sources):
        caveats.append("A manifest contains no source: it is unknown whether both runs played the same frames.")
    if not all(models):
        caveats.append("A manifest contains no model: it is unknown whether both runs used the same one.")
    elif models[0] != models[1]:
        names = [run.manifest["model"].get("name", "?") for run in (local, remote)]
        caveats.append(f"The models differ ({names[0]} locally, {names[1]} remotely): their masks may differ as well.")
    paces = [run.manifest.get("configuration", {}) for run in (local, remote)]
    differing = [name for name in _PACE if paces[0].get(name) != paces[1].get(name)]
    if differing:
        caveats.append(f"The runs were paced differently ({', '.join(differing)}): waiting is part of the totals.")
    host = urlsplit(str(paces[0].get("broker", ""))).hostname
    if host and host not in _LOOPBACK:
        caveats.append(f"The local run's broker was {host}, not the vehicle itself: its crossing includes a link.")
    return tuple(caveats)


def _common_frames(local: RunLog, remote: RunLog) -> pd.DataFrame:
    """Returns the frames that both runs answered, with the suffixes `_local` and `_remote` in their columns."""
    own, other = (_answered(run) for run in (local, remote))
    frames = own.add_suffix("_local").join(other.add_suffix("_remote"), how="inner")
    if frames.empty:
        raise OffloadingError(
            f"no frame was answered in both {local.name} ({len(own)} answered) and {remote.name} ({len(other)}): "
            "play the same source to both workers"
        )
    return frames


def _answered(run: RunLog) -> pd.DataFrame:
    # A source that is played in a loop contains every frame several times.
    frames = run.frames.assign(nth=run.frames.groupby(["camera", "frame_index"]).cumcount()).set_index(list(_FRAME))
    frames = frames[(frames["outcome"] == Outcome.ANSWERED).to_numpy()]
    return frames[[*_CROSSED, *_CODEC, *_BYTES]].astype("float64").dropna()


def _sum(frames: pd.DataFrame, names: Sequence[str], run: str) -> Floats:
    """Adds columns of one of the runs, frame by frame."""
    return np.asarray(frames[[f"{name}_{run}" for name in names]].sum(axis=1), np.float64)


def _unanswered(run: RunLog) -> float:
    return float((~run.frames["outcome"].isin(WITH_RESULT)).mean())


def _fastest_ms(run: RunLog) -> float:
    """Half the fastest round trip of a clock exchange, which is the smallest error bound of an offset."""
    return float(run.frames["clock_error_ms"].astype("float64").min())


def _alternative(
    name: str, local_ms: Floats, remote_ms: Floats, model: LinkModel, link: EstimatedLink, *, seed: int
) -> Alternative:
    p50 = describe(local_ms, seed=seed).p50
    difference = describe(remote_ms - local_ms, seed=seed).p50
    share = float(np.mean(remote_ms < local_ms))
    bandwidth = model.bandwidth_for(p50.value, link.delay_ms)
    delay = model.delay_for(p50.value, link.bandwidth_mbps)
    reason = _reason(p50.value, model, link, bandwidth, delay)
    comparison = (
        f"{_difference_text(name, difference, len(local_ms))}: {share * 100:.0f} % of the frames were faster offloaded."
    )
    return Alternative(
        name=name,
        p50=p50,
        difference=difference,
        share_faster=share,
        bandwidth_mbps=bandwidth,
        delay_ms=delay,
        reason=reason,
        sentence=" ".join(part for part in (comparison, _break_even_text(link, bandwidth, delay), reason) if part),
    )


def _difference_text(name: str, difference: IntervalEstimate, frames: int) -> str:
    low, high = difference.low, difference.high
    if not math.isfinite(low):
        return f"Too few independent frames ({frames:,}) to say whether offloading is faster than {name}"
    if low <= 0 <= high:
        signed = " to ".join(f"{bound:.1f}".replace("-", "−") for bound in (low, high))
        return (
            f"These {frames:,} frames do not show whether offloading is faster than {name} "
            f"(95 % interval of the median difference {signed} ms)"
        )
    near, far = sorted((abs(low), abs(high)))
    is_worth = high < 0
    return (
        f"{'Worth it' if is_worth else 'Not worth it'} on these {frames:,} frames of one run each: an offloaded mask arrived "
        f"{abs(difference.value):.1f} ms {'earlier' if is_worth else 'later'} than from {name} at the median "
        f"(95 % interval {near:.1f} to {far:.1f} ms)"
    )


def _break_even_text(link: EstimatedLink, bandwidth: float | None, delay: float | None) -> str:
    """States the link at which offloading starts to be faster."""
    limits = []
    if bandwidth is not None:
        limits.append(f"above {_rate(bandwidth)}, at the link's {link.delay_ms:.1f} ms of delay each way")
    if delay is not None:
        limits.append(f"below {delay:.1f} ms of delay each way, at {_width(link)}")
    return f"Offloading is faster {'; and '.join(limits)}." if limits else ""


def _reason(p50_ms: float, model: LinkModel, link: EstimatedLink, bandwidth: float | None, delay: float | None) -> str:
    """States the reason if no bandwidth or no delay makes offloading faster."""
    least_ms = model.p50_ms(None, 0)
    if bandwidth is None and delay is None and least_ms >= p50_ms:
        return (
            f"No link makes it faster: without any delay and transfer an offloaded frame takes {least_ms:.1f} ms, "
            f"against {p50_ms:.1f} ms."
        )
    reasons = []
    if bandwidth is None:
        reasons.append(f"No bandwidth makes it faster at the link's {link.delay_ms:.1f} ms of delay each way.")
    if delay is None:
        reasons.append(f"No delay is short enough to make it faster at {_width(link)}.")
    return " ".join(reasons)


def _width(link: EstimatedLink) -> str:
    return "unlimited bandwidth" if link.bandwidth_mbps is None else f"the link's {_rate(link.bandwidth_mbps)}"


def _rate(mbps: float) -> str:
    return f"{mbps:,.0f} Mbit/s" if mbps >= 100 else f"{mbps:.3g} Mbit/s"  # Three figures


def _unanswered_text(local: float, remote: float) -> str:
    return f"Unanswered: {local * 100:.1f} % of the frames locally, {remote * 100:.1f} % offloaded."


_HOUR_S = 3600


class CostError(SkylaneError):
    """A price cannot be computed from these values."""


@dataclass(frozen=True, slots=True)
class FootageCost:
    """The price of some footage, and the values from which it was computed."""

    frames: int
    hours: float  # Processing time of the machine, not the duration of the footage.
    price: float  # Unrounded, in `currency`.
    currency: str
    price_per_hour: float
    footage_hz: float
    throughput_hz: float


def footage_cost(
    throughput_hz: float,
    price_per_hour: float,
    *,
    currency: str = "EUR",
    footage_hz: float = 24.0,
    footage_hours: float = 24.0,
) -> FootageCost:
    """Computes the price of footage: a machine is rented for frames / throughput, by the second.

    The serving-software comparison of 2022 priced 24 h of 24 fps in this way. `throughput_hz`: results per second; a run
    with fewer frames than the worker can process overestimates the price.

    Raises:
        CostError: a rate or a duration is not above 0, or the price is negative.
    """
    rates = {"throughput_hz": throughput_hz, "footage_hz": footage_hz, "footage_hours": footage_hours}
    for name, value in rates.items():
        if not (math.isfinite(value) and value > 0):
            raise CostError(f"{name} is {value:g}: give a value above 0")
    if not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise CostError(f"price_per_hour is {price_per_hour:g}: give the price of the machine per hour, 0 or above")
    frames = round(footage_hz * footage_hours * _HOUR_S)
    hours = frames / throughput_hz / _HOUR_S
    return FootageCost(frames, hours, hours * price_per_hour, currency, price_per_hour, footage_hz, throughput_hz)


def throughput_hz(run: RunLog) -> float:
    """Results per second of all vehicles, cameras and origins, from the first frame due to the last result.

    nan if no frame got a result. An open-loop run cannot exceed its frame rate: to measure a worker's capacity, play in a
    closed loop or at a higher rate.
    """
    results = frames_with_result(run.frames)
    duration_ns = result_times_ns(results).max() - results["t_due_ns"].min()
    return len(results) / float(duration_ns) * 1e9 if pd.notna(duration_ns) and duration_ns > 0 else math.nan
