"""Replays of a recorded drive through the presenters: every tick, with the results that have arrived by then.

Results arrive after a fixed time, or over an emulated link, with or without an outage.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from bench.freshness.recording import RecordedDrive, RecordedDrivePlan, record_drive
from edge.config import EdgeConfig
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, Presenter, PresenterParts, Tick
from modelling.evaluation.streaming import Mask, StreamingScores
from ops.link.timing import LinkDirection, StreamTiming
from shared.imaging.opencv import cv2
from shared.network.link_spec import PROFILES, LinkSpec
from shared.registry import load
from shared.runlog.presented_log import OutputOrigin

NS_PER_MS = 1_000_000
CEILING: Final = "ceiling"  # The remote model without a delay.
LOCAL: Final = "local only"
HOLD: Final = "hold"
EVERY: Final = "every 3rd"
AGES_MS: Final = (33, 100, 200, 300, 500)
LINKS: Final = ("none", "5g", "4g")
OUTAGE: Final = "outage"
OUTAGE_LINK: Final = "5g"  # The link before and after the outage.
OUTAGE_S: Final = (2, 12)  # Begin and end, from the start of the drive.
RATE_HZ, FAST_RATE_HZ = 10, 30  # An age that is no multiple of the period needs the faster camera.

_EVERY_NUMBER = 3
_WARM_UP_MS = max(AGES_MS)  # Every case of a drive is scored from here on, where each age has its first result.

_MAX_AGE_NS = round(EdgeConfig().present_max_age_ms * 1e6)

Scores = dict[str, StreamingScores]  # Scores by candidate.
Sources = Sequence[int | None]  # The frame of the newest usable result, for each tick; None without one.


@dataclass(frozen=True, slots=True)
class ResultArrivals:
    """The times at which results arrive, from the start of the drive; None for a frame that is not answered."""

    at_ns: tuple[int | None, ...]

    def newest(self, now_ns: int) -> int | None:
        """Returns the latest frame whose result has arrived; None before the first one."""
        arrived = [frame for frame, at_ns in enumerate(self.at_ns) if at_ns is not None and at_ns <= now_ns]
        return arrived[-1] if arrived else None

    def only_every(self, number: int) -> "ResultArrivals":
        """Returns the arrivals if only every n-th frame is sent."""
        return ResultArrivals(tuple(None if frame % number else at_ns for frame, at_ns in enumerate(self.at_ns)))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The parts of a round trip that are not the link's."""

    inference_ms: float
    other_ms: float = 8.0  # Work of vehicle and worker, measured beside the inference, see docs/results/index.md.
    window: int = 2  # Unanswered frames; a frame that is due while the window is full is not sent.


@dataclass(frozen=True, slots=True)
class DriveReplay:
    """A drive to replay, and with what."""

    plan: RecordedDrivePlan
    presenters: tuple[str, ...]
    fusion: Path | None
    trip: RoundTrip
    with_outage: bool  # Whether the drive goes through an outage, instead of all ages and links.


def age_case(age_ms: int) -> str:
    """Returns the name of the case with an imposed age."""
    return f"{age_ms} ms"


def outage_frames() -> int:
    """Returns the frames of a drive with an outage and four seconds after it."""
    return (OUTAGE_S[1] + 4) * RATE_HZ


def replay_drive(job: DriveReplay) -> dict[str, Scores]:
    """Records a drive if necessary; returns the scores by case and candidate. All cases run in this process."""
    cv2.setNumThreads(1)  # Each process has one core.
    drive = record_drive(job.plan)
    if job.with_outage:
        begin_ns, end_ns = (round(each * 1e9) for each in OUTAGE_S)
        return {OUTAGE: _scores(drive, job, _over_link(drive, job, OUTAGE_LINK, (begin_ns, end_ns)))}
    slow = drive.only_every(FAST_RATE_HZ // RATE_HZ)
    cases: dict[str, Scores] = {}
    for age_ms in AGES_MS:
        seen = drive if age_ms * RATE_HZ % 1000 else slow
        cases[age_case(age_ms)] = _scores(seen, job, after(age_ms, len(seen.images), seen.period_ns))
    return cases | {link: _scores(slow, job, _over_link(slow, job, link)) for link in LINKS}


def usable_sources(drive: RecordedDrive, arrivals: ResultArrivals) -> list[int | None]:
    """Returns the frame of the newest result at each tick; None before the first result and if it is too old."""
    newest = [arrivals.newest(tick * drive.period_ns) for tick in range(len(drive.images))]
    return [
        None if frame is None or (tick - frame) * drive.period_ns > _MAX_AGE_NS else frame
        for tick, frame in enumerate(newest)
    ]


def replay(drive: RecordedDrive, presenter: Presenter, sources: Sources, first: int = 0) -> StreamingScores:
    """Returns the scores of a presenter's outputs from the tick `first` on; it sees the earlier ticks too."""
    scores = StreamingScores(drive.card.labels.names)
    for tick, output in enumerate(outputs(drive, presenter, sources)):
        if tick < first:
            continue
        source = sources[tick]
        if output.origin is OutputOrigin.NONE:
            age_ns = None
        elif output.origin is OutputOrigin.LOCAL:
            age_ns = 0
        else:
            assert source is not None, "a remote result is necessary for an output that is not local"
            age_ns = (tick - source) * drive.period_ns
        scores.add(drive.truths[tick], output.result, origin=output.origin, age_ns=age_ns, drive=drive.name)
    return scores


def outputs(drive: RecordedDrive, presenter: Presenter, sources: Sources) -> Iterator[Output]:
    """Yields the output of every tick."""
    for tick, source in enumerate(sources):
        newest = None
        if source is not None:
            newest = ArrivedResult(source, source * drive.period_ns, drive.remote[source])
        yield presenter.present(Tick(tick, tick * drive.period_ns, drive.images[tick], drive.geometry), newest)


def score_masks(drive: RecordedDrive, masks: Iterable[Mask], origin: OutputOrigin, first: int = 0) -> StreamingScores:
    """Returns the scores from the tick `first` on if the mask of each frame were there without a delay."""
    scores = StreamingScores(drive.card.labels.names)
    for truth, mask in islice(zip(drive.truths, masks, strict=True), first, None):
        scores.add(truth, mask, origin=origin, age_ns=0, drive=drive.name)
    return scores


def open_presenter(name: str, parts: PresenterParts) -> Presenter:
    """Returns a presenter of the table."""
    build: Callable[[PresenterParts], Presenter] = load("presenter", PRESENTERS, name)
    return build(parts)


def after(age_ms: float, frames: int, period_ns: int) -> ResultArrivals:
    """Returns the arrivals if every result takes the same time."""
    return ResultArrivals(tuple(frame * period_ns + round(age_ms * NS_PER_MS) for frame in range(frames)))


def over_link(
    spec: LinkSpec,
    trip: RoundTrip,
    period_ns: int,
    sizes: Sequence[tuple[int, int]],
    outage_ns: tuple[int, int] | None = None,
) -> ResultArrivals:
    """Simulates one vehicle and one worker, which infers one frame at a time, over a link; the link's seed decides.

    `sizes`: bytes of each frame and of its result. `outage_ns`: begin and end of a time without a link. A frame or a result
    that is under way at its begin is lost, and a frame that is due within it is not sent.
    """
    leaves_up_s, leaves_down_s = (_crossing(spec, up=up) for up in (True, False))
    lost_from_ns, lost_to_ns = outage_ns or (math.inf, math.inf)
    vehicle_s, inference_s = trip.other_ms / 2e3, trip.inference_ms / 1e3
    worker_free_s = 0.0
    arrivals: list[int | None] = []
    for frame, (frame_bytes, result_bytes) in enumerate(sizes):
        due_ns = frame * period_ns
        unanswered = sum(at_ns is not None and at_ns > due_ns for at_ns in arrivals)
        if unanswered >= trip.window or lost_from_ns <= due_ns < lost_to_ns:
            arrivals.append(None)
            continue
        received_s = leaves_up_s(frame_bytes, due_ns / 1e9 + vehicle_s)
        worker_free_s = max(worker_free_s, received_s) + inference_s
        at_ns = round(leaves_down_s(result_bytes, worker_free_s + vehicle_s) * 1e9)
        is_lost = due_ns < lost_to_ns and at_ns >= lost_from_ns
        arrivals.append(None if is_lost else at_ns)
    return ResultArrivals(tuple(arrivals))


def _over_link(
    drive: RecordedDrive, job: DriveReplay, link: str, outage_ns: tuple[int, int] | None = None
) -> ResultArrivals:
    spec = PROFILES[link].model_copy(update={"seed": drive.plan.seed})
    return over_link(spec, job.trip, drive.period_ns, drive.sizes, outage_ns)


def _scores(drive: RecordedDrive, job: DriveReplay, arrivals: ResultArrivals) -> Scores:
    """Returns the scores of every candidate over the same ticks."""
    first = -(-_WARM_UP_MS * NS_PER_MS // drive.period_ns)
    sources = usable_sources(drive, arrivals)
    sparse = usable_sources(drive, arrivals.only_every(_EVERY_NUMBER))
    parts = PresenterParts(drive.card, drive.local_output, job.fusion, drive.local_card)
    scores = {
        CEILING: score_masks(drive, drive.remote, OutputOrigin.REMOTE, first),
        LOCAL: score_masks(drive, drive.local, OutputOrigin.LOCAL, first),
        EVERY: replay(drive, open_presenter(HOLD, parts), sparse, first),
    }
    return scores | {name: replay(drive, open_presenter(name, parts), sources, first) for name in job.presenters}


def _crossing(spec: LinkSpec, *, up: bool) -> Callable[[int, float], float]:
    """Returns the function of one direction of the link, with one connection.

    It returns when the last byte of a message of this size that is sent now has crossed the link.
    """
    direction = LinkDirection(spec, up=up)
    stream = StreamTiming(direction, 0, Counter())

    def leaves_s(size: int, now_s: float) -> float:
        for sent in range(0, size, direction.piece_bytes):
            piece = min(direction.piece_bytes, size - sent)
            at_s = stream.release_s(piece, size - sent - piece, now_s)
        return at_s

    return leaves_s
