"""All cases of one drive, replayed in one process: imposed ages, links, and an outage."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.freshness.arrivals import NS_PER_MS, ResultArrivals, RoundTrip, after, over_link
from bench.freshness.recording import RecordedDrive, RecordedDrivePlan, record_drive
from bench.freshness.replay import replay, score_masks, usable_sources
from edge.presenting.presenter import PRESENTERS, Presenter, PresenterParts
from modelling.evaluation.streaming import StreamingScores
from shared.imaging.opencv import cv2
from shared.network.link_spec import PROFILES
from shared.registry import load
from shared.runlog.presented_log import OutputOrigin

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

Scores = dict[str, StreamingScores]  # Scores by candidate.


@dataclass(frozen=True, slots=True)
class DriveReplay:
    """The settings of a replay."""

    plan: RecordedDrivePlan
    presenters: tuple[str, ...]
    fusion: Path | None
    trip: RoundTrip


def age_case(age_ms: int) -> str:
    """Returns the name of the case with an imposed age."""
    return f"{age_ms} ms"


def replay_ages_and_links(job: DriveReplay) -> dict[str, Scores]:
    """Records a drive of the faster camera if necessary; returns the scores by case and candidate."""
    fast = _recorded(job)
    slow = fast.only_every(FAST_RATE_HZ // RATE_HZ)
    cases: dict[str, Scores] = {}
    for age_ms in AGES_MS:
        drive = fast if age_ms * RATE_HZ % 1000 else slow
        cases[age_case(age_ms)] = _scores(drive, job, after(age_ms, len(drive.images), drive.period_ns))
    for link in LINKS:
        cases[link] = _scores(slow, job, _over_link(slow, job, link))
    return cases


def replay_outage(job: DriveReplay) -> dict[str, Scores]:
    """Records a drive if necessary; returns the scores through an outage by case and candidate."""
    drive = _recorded(job)
    begin_ns, end_ns = (round(each * 1e9) for each in OUTAGE_S)
    return {OUTAGE: _scores(drive, job, _over_link(drive, job, OUTAGE_LINK, (begin_ns, end_ns)))}


def outage_frames() -> int:
    """Returns the frames of a drive with an outage and four seconds after it."""
    return (OUTAGE_S[1] + 4) * RATE_HZ


def _recorded(job: DriveReplay) -> RecordedDrive:
    cv2.setNumThreads(1)  # Each process has one core.
    return record_drive(job.plan)


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


def open_presenter(name: str, parts: PresenterParts) -> Presenter:
    """Returns a presenter of the table."""
    build: Callable[[PresenterParts], Presenter] = load("presenter", PRESENTERS, name)
    return build(parts)
