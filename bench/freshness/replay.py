"""Replays of a recorded drive through the presenters: every tick, with the results that have arrived by then.

Results arrive after a fixed time, or over an emulated link, with or without an outage.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bench.freshness.recording import RecordedDrive, RecordedDrivePlan, record_drive
from edge.config import EdgeConfig
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, Presenter, PresenterParts, Tick
from modelling.evaluation.class_map import ClassMap
from modelling.evaluation.streaming import Mask, StreamingScores
from ops.link.arrivals import ResultArrivals, RoundTrip, after, over_link
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
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


class ReplayedDrive(Protocol):
    """A drive in the size of the model's input, and what the remote model makes of its frames."""

    @property
    def card(self) -> ModelCard:
        """The card of the remote model."""

    @property
    def geometry(self) -> Geometry:
        """From the camera's frames to the model's input."""

    @property
    def due_ns(self) -> Sequence[int]:
        """The time of each frame."""

    @property
    def images(self) -> Any:
        """The image of each frame, H×W×3 RGB."""

    @property
    def truths(self) -> Any:
        """The true labels of each frame; None for one without them."""

    @property
    def remote(self) -> Any:
        """The remote model's result of each frame; None for one without it."""

    @property
    def classes(self) -> ClassMap:
        """The compared classes."""

    def in_truth(self, mask: Mask) -> Mask:
        """Returns a result in the size of the true labels."""

    def drive_of(self, tick: int) -> str:
        """Returns the name of the continuous drive that a frame is part of."""


def usable_sources(drive: RecordedDrive, arrivals: ResultArrivals) -> list[int | None]:
    """Returns the frame of the newest result at each tick; None before the first result and if it is too old."""
    newest = [arrivals.newest(due_ns) for due_ns in drive.due_ns]
    return [
        None if frame is None or due_ns - drive.due_ns[frame] > _MAX_AGE_NS else frame
        for due_ns, frame in zip(drive.due_ns, newest, strict=True)
    ]


def replay(
    drive: ReplayedDrive, presenter: Presenter, sources: Sources, ticks: Container[int] | None = None
) -> StreamingScores:
    """Returns the scores of a presenter's outputs at some ticks, or at all; it sees the others too."""
    scores = StreamingScores(drive.classes.names)
    for tick, output in enumerate(outputs(drive, presenter, sources)):
        if ticks is not None and tick not in ticks:
            continue
        source = sources[tick]
        if output.origin is OutputOrigin.NONE:
            age_ns = None
        elif output.origin is OutputOrigin.LOCAL:
            age_ns = 0
        else:
            assert source is not None, "a remote result is necessary for an output that is not local"
            age_ns = drive.due_ns[tick] - drive.due_ns[source]
        _score(scores, drive, tick, output.result, output.origin, age_ns)
    return scores


def outputs(drive: ReplayedDrive, presenter: Presenter, sources: Sources) -> Iterator[Output]:
    """Yields the output of every tick."""
    for tick, source in enumerate(sources):
        newest = None
        if source is not None:
            newest = ArrivedResult(source, drive.due_ns[source], drive.remote[source])
        yield presenter.present(Tick(tick, drive.due_ns[tick], drive.images[tick], drive.geometry), newest)


def score_masks(
    drive: ReplayedDrive, masks: Iterable[Mask | None], origin: OutputOrigin, ticks: Container[int] | None = None
) -> StreamingScores:
    """Returns the scores at some ticks, or at all, if the mask of each frame were there without a delay."""
    scores = StreamingScores(drive.classes.names)
    for tick, mask in enumerate(masks):
        if ticks is None or tick in ticks:
            _score(scores, drive, tick, mask, origin, None if mask is None else 0)
    return scores


def _score(  # noqa: PLR0917 - one tick in full.
    scores: StreamingScores,
    drive: ReplayedDrive,
    tick: int,
    mask: Mask | None,
    origin: OutputOrigin,
    age_ns: int | None,
) -> None:
    """Adds a tick that has true labels."""
    truth = drive.truths[tick]
    if truth is not None:
        shown = None if mask is None else drive.classes.of_network(drive.in_truth(mask))
        truth = drive.classes.of_truth(truth)
        scores.add(truth, shown, origin=origin, age_ns=age_ns, drive=drive.drive_of(tick))


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
    ticks = range(first, len(drive.images))
    sources = usable_sources(drive, arrivals)
    sparse = usable_sources(drive, arrivals.only_every(_EVERY_NUMBER))
    parts = PresenterParts(drive.card, drive.local_output, job.fusion, drive.local_card)
    scores = {
        CEILING: score_masks(drive, drive.remote, OutputOrigin.REMOTE, ticks),
        LOCAL: score_masks(drive, drive.local, OutputOrigin.LOCAL, ticks),
        EVERY: replay(drive, open_presenter(HOLD, parts), sparse, ticks),
    }
    return scores | {name: replay(drive, open_presenter(name, parts), sources, ticks) for name in job.presenters}
