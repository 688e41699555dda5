"""Runs a cell once and computes its row in the table of runs; searches for its capacity if the scenario asks for it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.study.accuracy import compare_masks
from analysis.study.measurement import (
    DONE,
    RunMeasurement,
    RunPart,
    RunResult,
    judge,
    measure,
    measures_every_frame,
    resource_usage,
    run_metrics,
    run_provenance,
    tail_latency,
)
from analysis.study.scenarios import (
    CapacitySettings,
    RunLength,
    ValidityRules,
    VehicleLoad,
    frame_counts,
)
from analysis.study.study_plan import StudyCell, StudyPlan
from ops.study.sample_drives import source_of
from ops.study.session import RESOURCES, Session


def run_cell(
    session: Session,
    plan: StudyPlan,
    cell: StudyCell,
    folder: Path,
    *,
    seed: int,
    repetition: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Plays a cell into `folder` and measures it; `on_step` receives the steps of a capacity search.

    `seed` is that of arrivals and link; `repetition`, counted from 1, selects the seed of the drive.

    Raises:
        SkylaneError: A vehicle or worker failed, or nothing could be measured.
    """
    settings = plan.settings(cell.scenario)
    if cell.frames is not None:
        settings = settings.model_copy(update={"frames": cell.frames})
    drive_seed = plan.drive_seed(repetition)
    frames, warm_up = frame_counts(cell.scenario, settings, plan.frames, plan.warm_up_frames)

    def attempt(vehicles: int, name: str) -> tuple[RunPart, RunMeasurement]:
        load = VehicleLoad(frames + warm_up, warm_up, vehicles, seed, settings, cell.workers, drive_seed)
        session.play(cell, load, folder / name)
        run = measure(folder / name, vehicles, warm_up, every_frame=measures_every_frame(cell))
        if plan.accuracy:
            source = source_of(plan, cell, drive_seed)
            run = replace(run, accuracy=compare_masks(folder / name, source, warm_up))
        return RunPart(name, vehicles, warm_up), run

    row = {"state": DONE, "broker": session.broker, "seed": seed}
    if plan.bag is None:
        row["drive_seed"] = drive_seed
    if isinstance(settings, CapacitySettings):
        return _search(attempt, settings, row, folder, on_step)
    part, run = attempt(cell.vehicles, ".")
    row |= _measured_columns(run, settings, folder)
    if isinstance(settings, ValidityRules):
        verdict = judge(run, settings)
        row |= {"validity": verdict.validity, "validity_reason": verdict.reason}
    return RunResult(row, (part,))


def _search(
    attempt: Callable[[int, str], tuple[RunPart, RunMeasurement]],
    settings: CapacitySettings,
    row: Mapping[str, Any],
    folder: Path,
    on_step: Callable[[str], None],
) -> RunResult:
    """Searches for the capacity; the row gets the metrics of the largest step that fits, or of the first step."""
    parts: list[RunPart] = []
    runs: dict[int, RunMeasurement] = {}

    def step(vehicles: int) -> CapacityStep:
        on_step(f"{vehicles} vehicle{'s' if vehicles > 1 else ''}")
        part, runs[vehicles] = attempt(vehicles, f"{vehicles}-vehicles")
        parts.append(part)
        return judge_step(runs[vehicles], vehicles, settings)

    found = search_capacity(step, settings.most)
    shown = found.vehicles or found.steps[0].vehicles
    reason = "" if found.is_bounded else f"{settings.most} fit, and more were not tried: raise scenarios.capacity.most"
    measured = _measured_columns(runs[shown], settings, folder / f"{shown}-vehicles")
    steps = tuple(
        {"step": number, **asdict(each), "fits": each.fits} for number, each in enumerate(found.steps, start=1)
    )
    return RunResult({**row, "capacity_vehicles": found.vehicles, "reason": reason, **measured}, tuple(parts), steps)


def _measured_columns(run: RunMeasurement, settings: RunLength, folder: Path) -> dict[str, Any]:
    usage = resource_usage(folder / RESOURCES, run.began_ns, run.ended_ns)
    return run_metrics(run, settings) | usage | run_provenance(run)


@dataclass(frozen=True, slots=True)
class CapacityStep:
    """The result for one number of vehicles; `reason` names the exceeded limits and is empty if it fits."""

    vehicles: int
    p99_ms: float | None  # None for fewer than 100 answered frames.
    unanswered_share: float
    throughput_hz: float
    reason: str = ""

    @property
    def fits(self) -> bool:
        """True if this number of vehicles keeps the limits."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The largest number of vehicles that fits, 0 if one vehicle does not fit, and the steps of the search."""

    vehicles: int
    steps: tuple[CapacityStep, ...]

    @property
    def is_bounded(self) -> bool:
        """True if a larger number did not fit; otherwise the search ended at the maximum it may try."""
        return any(not step.fits for step in self.steps)


def search_capacity(attempt: Callable[[int], CapacityStep], most: int) -> CapacityResult:
    """Doubles the number of vehicles until it does not fit, then bisects; at most 2·log2(most) + 2 attempts.

    The search assumes that every smaller number also fits. Near the limit, random variation can break this assumption;
    the repetitions of the study show by how much.
    """
    steps: list[CapacityStep] = []

    def fits(vehicles: int) -> bool:
        steps.append(attempt(vehicles))
        return steps[-1].fits

    fitting, failing, candidate = 0, most + 1, 1
    while candidate < failing:
        if fits(candidate):
            fitting = candidate
            candidate = min(2 * candidate, most) if candidate < most else failing
        else:
            failing = candidate
    while failing - fitting > 1 and failing <= most:
        middle = (fitting + failing) // 2
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return CapacityResult(fitting, tuple(steps))


def judge_step(run: RunMeasurement, vehicles: int, settings: CapacitySettings) -> CapacityStep:
    """Compares a run with the limits."""
    metrics = run_metrics(run, settings)
    (name, late_ms), share = tail_latency(run), run.unanswered_share
    reasons = []
    if late_ms is None:
        reasons.append("no frame was answered")
    elif late_ms > settings.limit_ms:
        reasons.append(f"{name} {late_ms:.1f} ms is over {settings.limit_ms:g} ms")
    if share > settings.unanswered_share:
        reasons.append(f"{share:.1%} unanswered is over {settings.unanswered_share:.1%}")
    return CapacityStep(vehicles, metrics["total_p99_ms"], share, metrics["throughput_hz"], "; ".join(reasons))
