"""A run: a cell played once, and the row of the runs' table that it gives."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.study.execution.capacity import CapacityStep, judge_step, search_capacity
from bench.study.execution.session import RESOURCES, Session
from bench.study.plan.cell import StudyCell
from bench.study.plan.scenarios import SCENARIOS, CapacitySettings, RunLength, ValidityRules, VehicleLoad, frame_counts
from bench.study.plan.study_plan import StudyPlan
from bench.study.results.measurement import RunMeasurement, measure, resource_usage, run_metrics, run_provenance
from bench.study.results.validity import judge

DONE, FAILED, SKIPPED = "done", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class RunPart:
    """Vehicles that played together: the whole run, or a step of a search. `folder` is relative to the run's."""

    folder: str
    vehicles: int
    warm_up: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves: its row, its parts, and the steps of a search for capacity."""

    row: Mapping[str, Any]
    parts: tuple[RunPart, ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()

    @property
    def state(self) -> str:
        """Done, failed or skipped."""
        return str(self.row["state"])

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "RunResult":
        """Read back what `to_json` gave."""
        parts = tuple(RunPart(**part) for part in document["parts"])
        return cls(dict(document["row"]), parts, tuple(document["steps"]))


def run_cell(
    session: Session,
    plan: StudyPlan,
    cell: StudyCell,
    folder: Path,
    *,
    seed: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Play a cell into `folder` and measure it; `on_step` is told of the steps of a search.

    Raises:
        SkylaneError: a vehicle or a worker failed, or nothing could be measured.
    """
    settings = plan.settings(cell.scenario)
    if cell.frames is not None:
        settings = settings.model_copy(update={"frames": cell.frames})
    frames, warm_up = frame_counts(cell.scenario, settings, plan.frames, plan.warm_up_frames)

    def attempt(vehicles: int, name: str) -> tuple[RunPart, RunMeasurement]:
        load = VehicleLoad(frames + warm_up, warm_up, vehicles, seed, settings)
        session.play(cell, load, folder / name)
        return RunPart(name, vehicles, warm_up), measure(
            folder / name, vehicles, warm_up, whole=measures_every_frame(cell)
        )

    row = {"state": DONE, "broker": session.broker, "seed": seed}
    if isinstance(settings, CapacitySettings):
        return _searched(attempt, settings, row, folder, on_step)
    part, run = attempt(cell.vehicles, ".")
    row |= _measured(run, settings, folder)
    if isinstance(settings, ValidityRules):
        verdict = judge(run, settings)
        row |= {"validity": verdict.validity, "validity_reason": verdict.reason}
    return RunResult(row, (part,))


def measures_every_frame(cell: StudyCell) -> bool:
    """Whether all frames of a cell's runs are measured: nothing warms up."""
    return not SCENARIOS[cell.scenario].warms_up


def _searched(
    attempt: Callable[[int, str], tuple[RunPart, RunMeasurement]],
    settings: CapacitySettings,
    row: Mapping[str, Any],
    folder: Path,
    on_step: Callable[[str], None],
) -> RunResult:
    """Search for capacity. Adds to the row the figures of the step with the most vehicles that fit, or of the first one."""
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
    figures_shown = _measured(runs[shown], settings, folder / f"{shown}-vehicles")
    steps = tuple(
        {"step": number, **asdict(each), "fits": each.fits} for number, each in enumerate(found.steps, start=1)
    )
    return RunResult(
        {**row, "capacity_vehicles": found.vehicles, "reason": reason, **figures_shown}, tuple(parts), steps
    )


def _measured(run: RunMeasurement, settings: RunLength, folder: Path) -> dict[str, Any]:
    return (
        run_metrics(run, settings)
        | resource_usage(folder / RESOURCES, run.began_ns, run.ended_ns)
        | run_provenance(run)
    )
