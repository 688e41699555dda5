"""Live runs that confirm the replayed figures: a real vehicle, link and worker present a recorded drive.

Each output is then computed again by a replay with exactly the results that the vehicle had at each tick.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.logs.run_log import load_run
from analysis.statistics.samples import spread
from analysis.statistics.streaming_accuracy import accuracy_interval
from analysis.streaming.tick_outputs import at_ticks, held_outputs, own_outputs, presented_outputs
from bench.freshness.recording import SyntheticDrive
from bench.freshness.replay import open_presenter, presented, score
from edge.presenting.presenter import PRESENTERS, PresenterParts
from modelling.evaluation.streaming import Mask, StreamingScores, joined
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.child import BenchError
from ops.processes.fixed_time import KnownAnswers, digest, open_fixed_time
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.playback import PlaybackSettings, model_inputs
from ops.processes.vehicle_process import VehicleProcess
from shared.imaging.opencv import cv2
from shared.messages.topics import camera_name
from shared.network.link_spec import LinkSpec
from shared.runlog.presented_log import HOLD, OutputOrigin, PresentedRow, read_presented

_LINK = LinkSpec(delay_ms=50)
_INFERENCE_MS = 60.0  # A result is then 200 ms old in most ticks, with the link and the work of both nodes.
_DEADLINE_MS = 1000.0


@dataclass(frozen=True, slots=True)
class LivePlan:
    """The settings of vehicle and worker."""

    presenter: str
    fusion: Path | None = None  # None: the table that is shipped for the two models.
    link: LinkSpec = _LINK
    inference_ms: float = _INFERENCE_MS


@dataclass(frozen=True, slots=True)
class LiveScores:
    """The scores for the same ticks, as presented live and as replayed, and those at the ticks."""

    live: StreamingScores
    replayed: StreamingScores
    at_tick: StreamingScores  # The newest output that was ready at each tick.
    after_due_ms: Sequence[float]  # Time from each tick until the output made for it was ready.
    without_output: int  # Number of ticks that are not scored: the vehicle had no output.
    not_written: int  # Number of outputs that are not scored: the sink of a busy machine left them out.


def measure_live(
    drives: Sequence[SyntheticDrive], plan: LivePlan, folder: Path, on_step: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Plays drives live and compares the streaming accuracy with the interval of the replay, over the same ticks.

    The interval is over drives, or over blocks of ticks of a single drive.

    Raises:
        SkylaneError: a node did not start or end as expected, or presented nothing.
    """
    found: list[LiveScores] = []
    for drive in drives:
        on_step(f"{plan.presenter} live, {drive.name}")
        found.append(play_live(drive, plan, folder / f"{plan.presenter}-{drive.plan.seed}"))
    names = drives[0].card.labels.names
    live = StreamingScores(names, [tick for each in found for tick in each.live.ticks])
    replayed = StreamingScores(names, [tick for each in found for tick in each.replayed.ticks])
    at_tick = joined([each.at_tick for each in found])
    expected, value = accuracy_interval(replayed), live.accuracy()
    return {
        "presenter": plan.presenter,
        "drives": len(drives),
        "ticks": len(live.ticks),
        "ticks_without_output": sum(each.without_output for each in found),
        "outputs_not_written": sum(each.not_written for each in found),
        "origins": live.origins(),
        "age_ms": spread([(tick.age_ns or 0) / 1e6 for tick in live.ticks]),
        "after_due_ms": spread([time_ms for each in found for time_ms in each.after_due_ms]),
        "live": value,
        "live_at_tick": at_tick.accuracy(),
        "replayed": {"value": expected.value, "low": expected.low, "high": expected.high},
        "is_confirmed": expected.low <= value <= expected.high,
    }


def play_live(drive: SyntheticDrive, plan: LivePlan, folder: Path) -> LiveScores:
    """Plays a drive through a vehicle, a link and a worker that gives the recorded results in a fixed time.

    Raises:
        SkylaneError: a node did not start or end as expected, or presented nothing.
    """
    pictures, answers = _write_source(drive, folder)
    worker_settings = NullWorkerSettings(
        model=drive.plan.model, models=drive.plan.models, think_ms=plan.inference_ms, answers=(answers,)
    )
    flags = ["--model", drive.plan.model, "--present", plan.presenter, "--deadline-ms", f"{_DEADLINE_MS:g}"]
    flags += ["--arrivals", "uniform", "--arrival-rate", str(drive.rate_hz), "--sink", "png"]
    if PRESENTERS[plan.presenter].needs_local:
        flags += ["--local-model", drive.plan.local_model, "--models", str(drive.plan.models)]
        flags += ["--fusion", str(plan.fusion)] if plan.fusion is not None else []
    with (
        Broker.start() as broker,
        Link(plan.link, broker.listener.host, broker.listener.port) as link,
        NullWorkerProcess(broker.url, worker_settings),
        VehicleProcess(pictures, folder / "vehicle", ["--broker", link.url, *flags]) as vehicle,
    ):
        vehicle.wait()
        vehicle.end()
    return _scores(drive, plan, folder / "vehicle")


def _scores(drive: SyntheticDrive, plan: LivePlan, run: Path) -> LiveScores:
    """Scores what a vehicle presented, and the replay of the same ticks."""
    rows = sorted(read_presented(run), key=lambda row: row.tick)
    with_output = [row for row in rows if row.origin is not OutputOrigin.NONE]
    masks = {row.tick: mask for row in with_output if (mask := _mask(run, row)) is not None}
    if not masks:
        raise BenchError(f"{run} has no output: see {run}.log")
    live = StreamingScores(drive.card.labels.names)
    for row in with_output:
        if row.tick in masks:
            live.add(drive.truths[row.tick], masks[row.tick], origin=row.origin, age_ns=row.age_ns, drive=drive.name)
    parts = PresenterParts(drive.card, drive.local_output, plan.fusion, drive.local_card)
    (made,) = presented_outputs(run).values()
    newest, shown = at_ticks(made, made), masks
    if plan.presenter == HOLD:
        frames = load_run(run).frames
        newest = [tick for ticks in held_outputs(frames, own_outputs(frames)).values() for tick in ticks]
        shown = dict(enumerate(drive.remote))  # What the worker gives.
    at_tick = StreamingScores(drive.card.labels.names)
    for tick in newest:
        if tick.source is None or tick.source in shown:
            mask = None if tick.source is None else shown[tick.source]
            at_tick.add(drive.truths[tick.sequence], mask, origin=tick.origin, age_ns=tick.age_ns, drive=drive.name)
    used = {row.tick: row.source_sequence for row in rows}  # The frame of the result behind the output of each tick.
    sources = [used.get(tick) for tick in range(len(drive.images))]
    every = score(drive, presented(drive, open_presenter(plan.presenter, parts), sources)).ticks
    replayed = StreamingScores(drive.card.labels.names, [every[tick] for tick in masks])
    after_due_ms = [tick.after_due_ms for tick in made if tick.source is not None]
    return LiveScores(
        live, replayed, at_tick, after_due_ms, len(rows) - len(with_output), len(with_output) - len(masks)
    )


def _write_source(drive: SyntheticDrive, folder: Path) -> tuple[Path, Path]:
    """Writes the images that the vehicle plays, and the results that the worker gives, by the images that it decodes."""
    pictures, answers = folder / "pictures", folder / "answers.npz"
    pictures.mkdir(parents=True)
    for index, image in enumerate(drive.images):
        cv2.imwrite(str(pictures / f"{index:05d}.png"), image[..., ::-1])  # OpenCV writes BGR.
    settings = PlaybackSettings(pictures, drive.plan.models, drive.plan.model, frames=len(drive.images))
    with open_fixed_time(settings.models, settings.model, (), 0.0) as model:
        received = model_inputs(settings, model)
    known = {digest(image): {"mask": mask} for image, mask in zip(received, drive.remote, strict=True)}
    KnownAnswers(known).write(answers)
    return pictures, answers


def _mask(run: Path, row: PresentedRow) -> Mask | None:
    """Returns the mask that a vehicle presented at a tick; None if its sink left it out."""
    path = run / "presented" / "masks" / camera_name(row.camera) / f"{row.frame_index:06d}.png"
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED) if path.exists() else None
    return None if mask is None else np.asarray(mask, np.uint8)
