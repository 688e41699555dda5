"""A run: a cell played once, and the row of the runs' table that it gives."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.study.execution.capacity import Step, search, step_of
from bench.study.execution.session import RESOURCES, Session
from bench.study.plan.cell import Cell
from bench.study.plan.scenarios import SCENARIOS, CapacitySettings, Length, Load, Rules, lengths
from bench.study.plan.study_plan import Plan
from bench.study.results.measurement import Measured, figures, measure, provenance, usage
from bench.study.results.validity import judge

DONE, FAILED, SKIPPED = "done", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Part:
    """Vehicles that played together: the whole run, or a step of a search. `folder` is relative to the run's."""

    folder: str
    vehicles: int
    warm_up: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a run leaves: its row, its parts, and the steps of a search for capacity."""

    row: Mapping[str, Any]
    parts: tuple[Part, ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()

    @property
    def state(self) -> str:
        """Done, failed or skipped."""
        return str(self.row["state"])

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Result":
        """Read back what `to_json` gave."""
        parts = tuple(Part(**part) for part in document["parts"])
        return cls(dict(document["row"]), parts, tuple(document["steps"]))


def play(
    session: Session,
    plan: Plan,
    cell: Cell,
    folder: Path,
    *,
    seed: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> Result:
    """Play a cell into `folder` and measure it; `on_step` is told of the steps of a search.

    Raises:
        SkylaneError: a vehicle or a worker failed, or nothing could be measured.
    """
    settings = plan.settings(cell.scenario)
    if cell.frames is not None:
        settings = settings.model_copy(update={"frames": cell.frames})
    frames, warm_up = lengths(cell.scenario, settings, plan.frames, plan.warm_up_frames)

    def attempt(vehicles: int, name: str) -> tuple[Part, Measured]:
        load = Load(frames + warm_up, warm_up, vehicles, seed, settings)
        session.play(cell, load, folder / name)
        return Part(name, vehicles, warm_up), measure(folder / name, vehicles, warm_up, whole=is_whole(cell))

    row = {"state": DONE, "broker": session.broker, "seed": seed}
    if isinstance(settings, CapacitySettings):
        return _searched(attempt, settings, row, folder, on_step)
    part, run = attempt(cell.vehicles, ".")
    row |= _measured(run, settings, folder)
    if isinstance(settings, Rules):
        verdict = judge(run, settings)
        row |= {"validity": verdict.validity, "validity_reason": verdict.reason}
    return Result(row, (part,))


def is_whole(cell: Cell) -> bool:
    """Whether all frames of a cell's runs are measured: nothing warms up."""
    return not SCENARIOS[cell.scenario].warms_up


def _searched(
    attempt: Callable[[int, str], tuple[Part, Measured]],
    settings: CapacitySettings,
    row: Mapping[str, Any],
    folder: Path,
    on_step: Callable[[str], None],
) -> Result:
    """Search for capacity. Adds to the row the figures of the step with the most vehicles that fit, or of the first one."""
    parts: list[Part] = []
    runs: dict[int, Measured] = {}

    def step(vehicles: int) -> Step:
        on_step(f"{vehicles} vehicle{'s' if vehicles > 1 else ''}")
        part, runs[vehicles] = attempt(vehicles, f"{vehicles}-vehicles")
        parts.append(part)
        return step_of(runs[vehicles], vehicles, settings)

    found = search(step, settings.most)
    shown = found.vehicles or found.steps[0].vehicles
    reason = "" if found.is_bounded else f"{settings.most} fit, and more were not tried: raise scenarios.capacity.most"
    figures_shown = _measured(runs[shown], settings, folder / f"{shown}-vehicles")
    steps = tuple(
        {"step": number, **asdict(each), "fits": each.fits} for number, each in enumerate(found.steps, start=1)
    )
    return Result({**row, "capacity_vehicles": found.vehicles, "reason": reason, **figures_shown}, tuple(parts), steps)


def _measured(run: Measured, settings: Length, folder: Path) -> dict[str, Any]:
    return figures(run, settings) | usage(folder / RESOURCES, run.began_ns, run.ended_ns) | provenance(run)
