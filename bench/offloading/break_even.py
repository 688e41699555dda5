"""Is it worth offloading? From a local run and a remote run of the same frames; and the link at which that turns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog
from bench.offloading.link_model import Curve, Link, LinkModel
from bench.statistics.bootstrap import Floats
from bench.statistics.description import IntervalEstimate, describe
from shared.errors import SkylaneError
from shared.runlog.latency_log import Outcome

_FRAME = ("camera", "frame_index", "nth")
_CROSSED = ("total_ms", "crossing_ms")
_CODEC = ("encoded_ms", "decoded_ms", "mask_encoded_ms", "mask_decoded_ms")
_BYTES = ("bytes_up", "bytes_down")
_PACE = ("closed_loop", "window", "arrivals", "arrival_rate_hz", "rate", "queue", "burst", "topics")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class OffloadingError(SkylaneError):
    """Two runs cannot be set against each other."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Offloading against one way of staying on the vehicle; milliseconds, over the frames that both runs answered."""

    name: str
    p50: IntervalEstimate  # Of staying.
    difference: IntervalEstimate  # Median of (remote - staying), frame by frame; below 0: offloading is faster.
    share_faster: float  # Of the frames, those that were faster remotely; 0 to 1.
    bandwidth_mbps: float | None  # Below it staying is faster, at the remote run's delay; None: staying always is.
    delay_ms: float | None  # One way; above it staying is faster, at the remote run's bandwidth; None: it always is.
    reason: str  # Why one of the two is None; empty where neither is.
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether offloading was worth it, and the link at which that turns."""

    local_name: str
    remote_name: str
    sentence: str  # Against the local run as it was.
    frames: int  # Answered in both runs.
    remote_p50: IntervalEstimate
    local: Alternative  # The worker on the vehicle, frames through codec and broker.
    in_process: Alternative  # The model in the vehicle's own process: the least that staying can take.
    local_unanswered: float  # Share of the frames read.
    remote_unanswered: float
    link_delay_ms: float  # Of the remote run's link, one way, as its frames tell it.
    link_bandwidth_mbps: float | None  # None: no limit showed.
    broker_ms: float
    modelled_p50_ms: (
        float  # What the model says of that link: near remote_p50, or the turning points are not to be trusted.
    )
    curve: Curve
    caveats: tuple[str, ...]


def worth(local: RunLog, remote: RunLog, *, seed: int = 0) -> Verdict:
    """Set a remote run against a local one, frame by frame: those that both answered, by camera and place in the source.

    The local run's worker ran on the vehicle, through a broker there. Its median crossing is therefore what a broker
    costs without a link, and the remote frames are taken to cost, over any other link (bench.offloading.link_model),

        total = (total - crossing) + broker + 2 · delay + 8 · (bytes_up + bytes_down) / bandwidth

    A vehicle that infers in its own process needs neither broker nor codec: what the local frames took without crossing,
    encoding and decoding is the least that staying could take.

    Raises:
        OffloadingError: the runs are of different sources, or no frame was answered in both.
    """
    caveats = _caveats(local, remote)
    frames = _both(local, remote)
    here_ms, away_ms, away_crossing_ms = (
        frames[name].to_numpy(np.float64) for name in ("total_ms_here", "total_ms_away", "crossing_ms_away")
    )
    broker_ms = float(frames["crossing_ms_here"].median())
    bits = 8 * _sum(frames, _BYTES, "away")
    link = Link.measured(away_crossing_ms, bits, broker_ms, _quickest_ms(remote) - _quickest_ms(local))
    model = LinkModel(away_ms - away_crossing_ms + broker_ms, bits)
    bare_ms = here_ms - _sum(frames, ("crossing_ms", *_CODEC), "here")
    unanswered = _unanswered(local), _unanswered(remote)
    stays = [
        _alternative(name, stay_ms, away_ms, model, link, seed=seed)
        for name, stay_ms in (("the local worker", here_ms), ("the vehicle's own process", bare_ms))
    ]
    return Verdict(
        local_name=local.name,
        remote_name=remote.name,
        sentence=f"{stays[0].sentence} {_told_unanswered(*unanswered)}",
        frames=len(frames),
        remote_p50=describe(away_ms, seed=seed).p50,
        local=stays[0],
        in_process=stays[1],
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
    """What keeps the comparison from being one of like with like."""
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
        caveats.append("A manifest names no source: that both runs played the same frames is not known.")
    if not all(models):
        caveats.append("A manifest names no model: that both runs used the same one is not known.")
    elif models[0] != models[1]:
        names = [run.manifest["model"].get("name", "?") for run in (local, remote)]
        caveats.append(f"The models differ ({names[0]} locally, {names[1]} remotely): so may what the masks show.")
    paces = [run.manifest.get("configuration", {}) for run in (local, remote)]
    differing = [name for name in _PACE if paces[0].get(name) != paces[1].get(name)]
    if differing:
        caveats.append(f"The runs were paced differently ({', '.join(differing)}): waiting is part of the totals.")
    host = urlsplit(str(paces[0].get("broker", ""))).hostname
    if host and host not in _LOOPBACK:
        caveats.append(f"The local run's broker was {host}, not the vehicle itself: its crossing holds a link.")
    return tuple(caveats)


def _both(local: RunLog, remote: RunLog) -> pd.DataFrame:
    """The frames that both runs answered with all that is needed: columns with `_here` and `_away` after their name."""
    here, away = (_answered(run) for run in (local, remote))
    frames = here.add_suffix("_here").join(away.add_suffix("_away"), how="inner")
    if frames.empty:
        raise OffloadingError(
            f"no frame was answered in both {local.name} ({len(here)} answered) and {remote.name} ({len(away)}): "
            "play the same source to both workers"
        )
    return frames


def _answered(run: RunLog) -> pd.DataFrame:
    # A source that is played again and again has a frame several times.
    frames = run.frames.assign(nth=run.frames.groupby(["camera", "frame_index"]).cumcount()).set_index(list(_FRAME))
    frames = frames[(frames["outcome"] == Outcome.ANSWERED).to_numpy()]
    return frames[[*_CROSSED, *_CODEC, *_BYTES]].astype("float64").dropna()


def _sum(frames: pd.DataFrame, names: Sequence[str], where: str) -> Floats:
    """Some columns of one of the runs, frame by frame."""
    return np.asarray(frames[[f"{name}_{where}" for name in names]].sum(axis=1), np.float64)


def _unanswered(run: RunLog) -> float:
    return float((run.frames["outcome"] != Outcome.ANSWERED).mean())


def _quickest_ms(run: RunLog) -> float:
    """Half the quickest round trip of a clock exchange: what the narrowest bound of an offset is made of."""
    return float(run.frames["clock_error_ms"].astype("float64").min())


def _alternative(
    name: str, stay_ms: Floats, away_ms: Floats, model: LinkModel, link: Link, *, seed: int
) -> Alternative:
    p50 = describe(stay_ms, seed=seed).p50
    difference = describe(away_ms - stay_ms, seed=seed).p50
    share = float(np.mean(away_ms < stay_ms))
    bandwidth = model.bandwidth_for(p50.value, link.delay_ms)
    delay = model.delay_for(p50.value, link.bandwidth_mbps)
    reason = _reason(p50.value, model, link, bandwidth, delay)
    told = f"{_answer(name, difference, len(stay_ms))}: {share * 100:.0f} % of the frames were faster offloaded."
    return Alternative(
        name=name,
        p50=p50,
        difference=difference,
        share_faster=share,
        bandwidth_mbps=bandwidth,
        delay_ms=delay,
        reason=reason,
        sentence=" ".join(part for part in (told, _turn(link, bandwidth, delay), reason) if part),
    )


def _answer(name: str, difference: IntervalEstimate, frames: int) -> str:
    low, high = difference.low, difference.high
    if not math.isfinite(low):
        return f"Too few independent frames ({frames:,}) to say whether offloading is faster than {name}"
    if low <= 0 <= high:
        signed = " to ".join(f"{bound:.1f}".replace("-", "−") for bound in (low, high))
        return (
            f"Whether offloading is faster than {name} cannot be told from these {frames:,} frames "
            f"(95 % interval of the median difference {signed} ms)"
        )
    near, far = sorted((abs(low), abs(high)))
    is_worth = high < 0
    return (
        f"{'Worth it' if is_worth else 'Not worth it'} on these {frames:,} frames of one run each: offloaded, a mask came "
        f"{abs(difference.value):.1f} ms {'sooner' if is_worth else 'later'} than from {name} at the median "
        f"(95 % interval {near:.1f} to {far:.1f} ms)"
    )


def _turn(link: Link, bandwidth: float | None, delay: float | None) -> str:
    """Where the answer turns."""
    turns = []
    if bandwidth is not None:
        turns.append(f"above {_rate(bandwidth)}, at the link's {link.delay_ms:.1f} ms of delay each way")
    if delay is not None:
        turns.append(f"below {delay:.1f} ms of delay each way, at {_width(link)}")
    return f"Offloading is faster {'; and '.join(turns)}." if turns else ""


def _reason(p50_ms: float, model: LinkModel, link: Link, bandwidth: float | None, delay: float | None) -> str:
    """Why it never turns, where it does not."""
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


def _width(link: Link) -> str:
    return "unlimited bandwidth" if link.bandwidth_mbps is None else f"the link's {_rate(link.bandwidth_mbps)}"


def _rate(mbps: float) -> str:
    return f"{mbps:,.0f} Mbit/s" if mbps >= 100 else f"{mbps:.3g} Mbit/s"  # noqa: PLR2004 (three figures)


def _told_unanswered(local: float, remote: float) -> str:
    return f"Unanswered: {local * 100:.1f} % of the frames locally, {remote * 100:.1f} % offloaded."
