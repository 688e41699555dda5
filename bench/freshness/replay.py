"""Plays a recorded drive through a presenter, tick by tick, with the results that have arrived by then."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from bench.freshness.arrivals import ResultArrivals
from bench.freshness.recording import RecordedDrive
from edge.config import EdgeConfig
from edge.presenting.presenter import ArrivedResult, Output, Presenter, Tick
from modelling.evaluation.streaming import Mask, StreamingScores
from shared.runlog.presented_log import OutputOrigin

Sources = Sequence[int | None]  # The frame of the newest usable result, for each tick; None without one.

_MAX_AGE_NS = round(EdgeConfig().present_max_age_ms * 1e6)


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
