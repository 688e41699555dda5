"""Replays of a recorded drive through the presenters: every tick, with the results that have arrived by then.

Results arrive after a fixed time, or over an emulated link, with or without an outage.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.freshness.recording import RecordedDrive, RecordedDrivePlan, SyntheticDrive, record_drive
from edge.config import EdgeConfig
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, Presenter, PresenterParts, Tick
from modelling.evaluation.streaming import Mask, StreamingScores, newest_ready
from ops.link.arrivals import ResultArrivals, RoundTrip, after, over_link
from shared.imaging.opencv import cv2
from shared.network.link_spec import PROFILES
from shared.registry import load
from shared.runlog.presented_log import HOLD, OutputOrigin

NS_PER_MS = 1_000_000
CEILING: Final = "ceiling"  # The remote model without a delay.
LOCAL: Final = "local only"
EVERY: Final = "every 3rd"
AGES_MS: Final = (33, 100, 200, 300, 500)
LINKS: Final = ("none", "5g", "4g")
OUTAGE: Final = "outage"
OUTAGE_LINK: Final = "5g"  # The link before and after the outage.
OUTAGE_S: Final = (2, 12)  # Begin and end, from the start of the drive.
RATE_HZ, FAST_RATE_HZ = 10, 30  # An age that is no multiple of the period needs the faster camera.

_EVERY_NUMBER = 3
_AS_RECEIVED: Final = (CEILING, HOLD, EVERY)  # Candidates that show results as they are, which takes no time.
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


def strict(case: str) -> str:
    """Returns the name of a case scored at the tick; under its own name it is scored for the tick."""
    return f"{case}, at the tick"


def outage_frames() -> int:
    """Returns the frames of a drive with an outage and four seconds after it."""
    return (OUTAGE_S[1] + 4) * RATE_HZ


def replay_drive(job: DriveReplay) -> dict[str, Scores]:
    """Records a drive if necessary; returns the scores by case and candidate. All cases run in this process."""
    cv2.setNumThreads(1)  # Each process has one core.
    drive = record_drive(job.plan)
    if job.with_outage:
        begin_ns, end_ns = (round(each * 1e9) for each in OUTAGE_S)
        return _scores(drive, job, OUTAGE, _over_link(drive, job, OUTAGE_LINK, (begin_ns, end_ns)))
    slow = drive.only_every(FAST_RATE_HZ // RATE_HZ)
    cases: dict[str, Scores] = {}
    for age_ms in AGES_MS:
        seen = drive if age_ms * RATE_HZ % 1000 else slow
        cases |= _scores(seen, job, age_case(age_ms), after(age_ms, len(seen.images), seen.period_ns))
    for link in LINKS:
        cases |= _scores(slow, job, link, _over_link(slow, job, link))
    return cases


def usable_sources(drive: RecordedDrive, arrivals: ResultArrivals) -> list[int | None]:
    """Returns the frame of the newest result at each tick; None before the first result and if it is too old."""
    newest = [arrivals.newest(due_ns) for due_ns in drive.due_ns]
    return [
        None if frame is None or due_ns - drive.due_ns[frame] > _MAX_AGE_NS else frame
        for due_ns, frame in zip(drive.due_ns, newest, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class MadeOutput:
    """What a candidate makes for a tick."""

    mask: Mask | None = None  # None: it makes no output.
    origin: OutputOrigin = OutputOrigin.NONE
    age_ns: int | None = None  # Time from the frame of the result to the tick; None without an output.


def presented(drive: RecordedDrive, presenter: Presenter, sources: Sources) -> list[MadeOutput]:
    """Returns what a presenter makes for every tick."""
    made = []
    for tick, output in enumerate(outputs(drive, presenter, sources)):
        source = sources[tick]
        age_ns = None if output.origin is OutputOrigin.NONE else 0
        if output.origin not in (OutputOrigin.NONE, OutputOrigin.LOCAL):
            assert source is not None, "a remote result is necessary for an output that is not local"
            age_ns = drive.due_ns[tick] - drive.due_ns[source]
        made.append(MadeOutput(output.result, output.origin, age_ns))
    return made


def undelayed(masks: Iterable[Mask | None], origin: OutputOrigin) -> list[MadeOutput]:
    """Returns the mask of each frame as what is made for its tick."""
    return [MadeOutput() if mask is None else MadeOutput(mask, origin, 0) for mask in masks]


def at_the_tick(drive: RecordedDrive, made: Sequence[MadeOutput], *, takes_time: bool = True) -> list[MadeOutput]:
    """Returns the newest output that was ready at each tick, see `newest_ready`.

    An output that takes time is ready after its tick and before the next one is due; for any such time, the result is the
    same. One that takes none, such as a result that is held, is ready at its tick.
    """
    with_output = [tick for tick, each in enumerate(made) if each.age_ns is not None]
    ready_ns = [drive.due_ns[tick] + takes_time for tick in with_output]
    found = []
    for due_ns, tick in zip(drive.due_ns, newest_ready(with_output, ready_ns, drive.due_ns), strict=True):
        if tick is None:
            found.append(MadeOutput())
            continue
        found.append(replace(made[tick], age_ns=(made[tick].age_ns or 0) + due_ns - drive.due_ns[tick]))
    return found


def outputs(drive: RecordedDrive, presenter: Presenter, sources: Sources) -> Iterator[Output]:
    """Yields the output of every tick."""
    for tick, source in enumerate(sources):
        newest = None
        if source is not None:
            newest = ArrivedResult(source, drive.due_ns[source], drive.remote[source])
        yield presenter.present(Tick(tick, drive.due_ns[tick], drive.images[tick], drive.geometry), newest)


def score(drive: RecordedDrive, made: Sequence[MadeOutput], ticks: Container[int] | None = None) -> StreamingScores:
    """Scores what is there at some ticks, or at all, where the drive has true labels."""
    scores = StreamingScores(drive.classes.names)
    for tick, each in enumerate(made):
        truth = drive.truths[tick]
        if truth is None or (ticks is not None and tick not in ticks):
            continue
        shown = None if each.mask is None else drive.classes.of_network(drive.in_truth(each.mask))
        truth = drive.classes.of_truth(truth)
        scores.add(truth, shown, origin=each.origin, age_ns=each.age_ns, drive=drive.drives[tick])
    return scores


def both_measures(
    drive: RecordedDrive, made: Mapping[str, Sequence[MadeOutput]], ticks: Container[int], strict_ticks: Container[int]
) -> tuple[Scores, Scores]:
    """Returns the scores by candidate for `ticks`, and at `strict_ticks`."""
    at = {name: at_the_tick(drive, each, takes_time=name not in _AS_RECEIVED) for name, each in made.items()}
    return (
        {name: score(drive, each, ticks) for name, each in made.items()},
        {name: score(drive, each, strict_ticks) for name, each in at.items()},
    )


def open_presenter(name: str, parts: PresenterParts) -> Presenter:
    """Returns a presenter of the table."""
    build: Callable[[PresenterParts], Presenter] = load("presenter", PRESENTERS, name)
    return build(parts)


def _over_link(
    drive: SyntheticDrive, job: DriveReplay, link: str, outage_ns: tuple[int, int] | None = None
) -> ResultArrivals:
    spec = PROFILES[link].model_copy(update={"seed": drive.plan.seed})
    return over_link(spec, job.trip, drive.period_ns, drive.sizes, outage_ns)


def _scores(drive: SyntheticDrive, job: DriveReplay, case: str, arrivals: ResultArrivals) -> dict[str, Scores]:
    """Returns the scores of every candidate over the same ticks, of both measures."""
    first = -(-_WARM_UP_MS * NS_PER_MS // drive.period_ns)
    last = len(drive.images)
    sources = usable_sources(drive, arrivals)
    sparse = usable_sources(drive, arrivals.only_every(_EVERY_NUMBER))
    parts = PresenterParts(drive.card, drive.local_output, job.fusion, drive.local_card)
    made = {
        CEILING: undelayed(drive.remote, OutputOrigin.REMOTE),
        LOCAL: undelayed([each.result for each in drive.local], OutputOrigin.LOCAL),
        EVERY: presented(drive, open_presenter(HOLD, parts), sparse),
    }
    made |= {name: presented(drive, open_presenter(name, parts), sources) for name in job.presenters}
    # At the tick `first`, the oldest age has its first result, so that a presenter's first output is ready at the next one.
    for_tick, at_tick = both_measures(drive, made, range(first, last), range(first + 1, last))
    return {case: for_tick, strict(case): at_tick}
