"""`skylane bench freshness`: how right the outputs of each presenter are at every tick, over ages of results and links.

Every drive is recorded once with the results of both models. All presenters then see the same ticks and results, in the order
of a run but without waiting, so that seeds decide everything.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from bench.freshness.arrivals import RoundTrip
from bench.freshness.drive_replay import (
    AGES_MS,
    FAST_RATE_HZ,
    HOLD,
    RATE_HZ,
    DriveReplay,
    Scores,
    outage_frames,
    replay_ages_and_links,
    replay_outage,
)
from bench.freshness.live import LivePlan, measure_live
from bench.freshness.recording import RecordedDrivePlan, record_drive
from bench.freshness.summary import merged, summarise
from bench.freshness.tables import tables
from bench.freshness.targets import FUSE, targets
from bench.harness import options
from bench.harness.comparison import plan_record
from edge.presenting.fusion_table import fusion_for, shipped_fusion
from edge.presenting.presenter import PRESENTERS
from edge.reuse.opening import check_local_model
from ops.processes.child import BenchError
from ops.processes.environment import BenchRun
from shared.files import file_sha256
from shared.flags import WholeRange
from shared.models.repository import Repository
from shared.runtime.machine import commit, usable_cores

_LEAST_FRAMES = max(AGES_MS) * FAST_RATE_HZ // 1000 + FAST_RATE_HZ // RATE_HZ
_LIVE_DRIVES = 3


@dataclass(frozen=True, slots=True)
class FreshnessPlan:
    """Settings of the benchmark."""

    drives: int = options.number(20, 1, 1000, "Number of unseen drives, in five weathers.")
    frames: int = options.number(61, _LEAST_FRAMES, 10_000, f"Frames of each drive, {FAST_RATE_HZ} a second.")
    outage_drives: int = options.number(5, 0, 1000, "Number of drives with an outage.")
    inference_ms: float = options.number(80.0, 0.0, 60_000.0, "Time of an inference behind a link.")
    presenters: tuple[str, ...] = options.choices(
        PRESENTERS, (*PRESENTERS,), "Presenter to compare with hold (repeatable). [all]", "--presenter"
    )
    models: Path = options.models()
    model: str = options.model()
    local_model: str = options.option("road-tiny", show_default=True, help="Name of the vehicle's own model.")
    fusion: Path | None = options.option(
        type=options.EXISTING_PATH, help="Fusion file. [the shipped one of the two models]"
    )
    live: bool = options.option(
        default=False, is_flag=True, help=f"Also play {_LIVE_DRIVES} drives live, and compare each with its replay."
    )
    processes: int = options.option(
        usable_cores, type=WholeRange(1, 256), help="Drives that are replayed at a time. [one per core]"
    )


def measure(plan: FreshnessPlan, run: BenchRun) -> dict[str, Any]:
    """Compare presenters on recorded drives: each output against the labels of its own tick, by age, link and class.

    The drives are recorded into runs/freshness, about 110 MB each. Seeds decide the result: a second run gives the same.
    """
    fusion = _checked(plan)
    jobs: list[tuple[Callable[[DriveReplay], dict[str, Scores]], DriveReplay]] = [
        *((replay_outage, _job(plan, fusion, number, outage=True)) for number in range(plan.outage_drives)),
        *((replay_ages_and_links, _job(plan, fusion, number, outage=False)) for number in range(plan.drives)),
    ]
    found = list(_all(jobs, plan.processes, run))
    cases = merged(found[plan.outage_drives :])
    if plan.outage_drives:
        cases |= merged(found[: plan.outage_drives])
    summary = summarise(cases)
    if plan.live:
        summary["live"] = _live(plan, fusion, run)
    return {
        **summary,
        "targets": targets(summary),
        "drives": [{"seed": job.plan.seed, "weather": job.plan.weather} for _, job in jobs[plan.outage_drives :]],
        "outage_drives": plan.outage_drives,
        "plan": plan_record(plan),
        "models": {name: Repository(plan.models).find(name).card().sha256 for name in (plan.model, plan.local_model)},
        "fusion": None if fusion is None else {"file": fusion.name, "sha256": file_sha256(fusion)},
        "commit": commit(),
    }


def _checked(plan: FreshnessPlan) -> Path | None:
    """Returns the fusion file, if a presenter needs one.

    Raises:
        SkylaneError: the models cannot be compared, or there is no fusion file for them.
    """
    repository = Repository(plan.models)
    stored = repository.find(plan.model)
    if stored.manifest.task != "segmentation":
        raise BenchError(
            f"model {plan.model} is for {stored.manifest.task}, and the bench compares masks: give a segmentation with "
            "--model"
        )
    local = repository.find(plan.local_model)
    check_local_model(local, stored.card())
    if FUSE not in plan.presenters:
        return None
    fusion_for(plan.fusion, stored.card(), local.card())
    return plan.fusion or shipped_fusion(plan.model, plan.local_model)


def _live(plan: FreshnessPlan, fusion: Path | None, run: BenchRun) -> list[dict[str, Any]]:
    """Returns the streaming accuracy of each presenter in live runs, beside that of the replay of the same ticks."""
    jobs = [_job(plan, fusion, number, outage=True) for number in range(_LIVE_DRIVES)]
    drives = [record_drive(job.plan) for job in jobs]
    found = []
    for name in jobs[0].presenters:
        _show(run, f"{name}: {len(drives)} drives live")
        found.append(measure_live(drives, LivePlan(name, fusion), run.folder, run.step))
    return found


def _job(plan: FreshnessPlan, fusion: Path | None, number: int, *, outage: bool) -> DriveReplay:
    rate_hz, frames = (RATE_HZ, outage_frames()) if outage else (FAST_RATE_HZ, plan.frames)
    recorded = RecordedDrivePlan(number, rate_hz, frames, plan.models, plan.model, plan.local_model)
    presenters = tuple(name for name in PRESENTERS if name == HOLD or name in plan.presenters)
    return DriveReplay(recorded, presenters, fusion, RoundTrip(plan.inference_ms))


def _all(
    jobs: list[tuple[Callable[[DriveReplay], dict[str, Scores]], DriveReplay]], processes: int, run: BenchRun
) -> Iterator[dict[str, Scores]]:
    """Yields the result of each job in their order."""
    # A forked process would inherit locks held by TensorFlow's threads.
    pool = run.enter_context(ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")))
    futures: list[Future[dict[str, Scores]]] = [pool.submit(replay, job) for replay, job in jobs]
    _show(run, f"recording and replaying {len(jobs)} drives")
    try:
        for number, future in enumerate(as_completed(futures), 1):
            future.result()
            _show(run, f"recorded and replayed {number} of {len(jobs)} drives")
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return (future.result() for future in futures)


def _show(run: BenchRun, step: str) -> None:
    """Displays a step, also in the log of a run without a terminal, because it takes minutes."""
    run.step(step)
    if not sys.stderr.isatty():
        click.echo(step, err=True)


freshness = options.bench_command("freshness", FreshnessPlan, measure, tables, json=options.JSON_FILE)
