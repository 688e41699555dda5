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
from bench.freshness.recording import RecordedDrivePlan
from bench.freshness.summary import merged, summarise
from bench.freshness.tables import tables
from bench.freshness.targets import targets
from bench.harness import options
from bench.harness.comparison import plan_record
from bench.harness.environment import BenchRun
from edge.presenting.table import PRESENTERS
from edge.reuse.opening import check_local_model
from shared.models.repository import Repository
from shared.runtime.machine import usable_cores

_LEAST_FRAMES = max(AGES_MS) * FAST_RATE_HZ // 1000 + FAST_RATE_HZ // RATE_HZ


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
    processes: int = options.option(
        usable_cores, type=click.IntRange(1, 256), help="Drives that are replayed at a time. [one per core]"
    )


def measure(plan: FreshnessPlan, run: BenchRun) -> dict[str, Any]:
    """Compare presenters on recorded drives: each output against the labels of its own tick, by age, link and class.

    The drives are recorded into runs/freshness, about 110 MB each. Seeds decide the result: a second run gives the same.
    """
    repository = Repository(plan.models)
    check_local_model(repository.find(plan.local_model), repository.find(plan.model).card())
    jobs: list[tuple[Callable[[DriveReplay], dict[str, Scores]], DriveReplay]] = [
        *((replay_outage, _job(plan, number, RATE_HZ, outage_frames())) for number in range(plan.outage_drives)),
        *((replay_ages_and_links, _job(plan, number, FAST_RATE_HZ, plan.frames)) for number in range(plan.drives)),
    ]
    found = list(_all(jobs, plan.processes, run))
    cases = merged(found[plan.outage_drives :])
    if plan.outage_drives:
        cases |= merged(found[: plan.outage_drives])
    summary = summarise(cases)
    return {
        **summary,
        "targets": targets(summary),
        "drives": [{"seed": job.plan.seed, "weather": job.plan.weather} for _, job in jobs[plan.outage_drives :]],
        "outage_drives": plan.outage_drives,
        "plan": plan_record(plan),
    }


def _job(plan: FreshnessPlan, number: int, rate_hz: int, frames: int) -> DriveReplay:
    recorded = RecordedDrivePlan(number, rate_hz, frames, plan.models, plan.model, plan.local_model)
    presenters = tuple(name for name in PRESENTERS if name == HOLD or name in plan.presenters)
    return DriveReplay(recorded, presenters, plan.fusion, RoundTrip(plan.inference_ms))


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
