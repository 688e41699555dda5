"""Replays of a recorded drive through the presenters: every tick, with the results that have arrived by then.

Results arrive after a fixed time, or over an emulated link, with or without an outage.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from bench.freshness.recording import RecordedDrive, RecordedDrivePlan, record_drive
from edge.config import EdgeConfig
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, Presenter, PresenterParts, Tick
from modelling.evaluation.streaming import Mask, StreamingScores
from ops.link.arrivals import ResultArrivals, RoundTrip, after, over_link
from shared.imaging.opencv import cv2
from shared.network.link_spec import PROFILES
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
