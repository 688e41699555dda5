"""A study's file: what is varied, how often and how long; and the cells that come of it."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from bench.load.gateway_deployment import MQTT
from bench.study.plan.axes import AXES, NAME, Axes, Combination
from bench.study.plan.cell import Cell, name_of
from bench.study.plan.scenarios import DAY_S, Length, ScenarioSettings
from cloud.models.repository import Repository
from modelling.recipes import RECIPES
from shared.config import ConfigError, Section, read_yaml
from shared.errors import suggestion

MAX_CELLS = 10_000  # More is a mistake in the file, or a lifetime.


class ReportSection(Section):
    """What the report adds: the price of 24 h of footage, where a price an hour is given."""

    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str = Field(default="EUR", min_length=1, max_length=8)
    footage_hz: float = Field(default=24.0, gt=0, le=1e4)


class Plan(Section):
    """A study's file."""

    name: str = Field(pattern=NAME)
    description: str = ""
    axes: Axes = Axes()
    exclude: tuple[Combination, ...] = ()
    include: tuple[Combination, ...] = ()
    repetitions: int = Field(default=3, ge=1, le=1000)
    frames: int = Field(default=30, ge=1, le=10_000_000)  # Measured, of each vehicle in a run.
    warm_up_frames: int = Field(default=5, ge=0, le=100_000)  # Of each vehicle before them.
    cool_down_s: float = Field(default=1.0, ge=0, le=DAY_S)  # Between runs.
    run_limit_s: float = Field(default=3600.0, gt=0, le=30 * DAY_S)  # A run that takes longer has failed.
    drive_frames: int = Field(default=40, ge=2, le=100_000)  # Of the drive; a longer run plays it again.
    scenarios: ScenarioSettings = ScenarioSettings()
    report: ReportSection = ReportSection()

    @model_validator(mode="after")
    def _combinations_say_something(self) -> Self:
        for key in ("exclude", "include"):
            for number, combination in enumerate(getattr(self, key)):
                if not combination.given():
                    raise ValueError(f"{key}.{number} names no axis: give at least one, or remove it")
        return self

    def settings(self, scenario: str) -> Length:
        """The settings of a scenario."""
        found: Length = getattr(self.scenarios, scenario)
        return found


def read_plan(path: Path, models: Path) -> Plan:
    """Read a study's file; `models` is the repository whose models it may name.

    Raises:
        ConfigError: naming the file, the key and what is wrong: an unknown axis, a value that does not exist (those
            that do are listed), a combination that is excluded and was never there, nothing left to run.
    """
    plan = read_yaml(path, Plan)
    known = model_names(models)
    places = [("axes", plan.axes.model)]
    for key, combinations in (("exclude", plan.exclude), ("include", plan.include)):
        places += [(f"{key}.{number}", each.model or ()) for number, each in enumerate(combinations)]
    for key, names in places:
        for name in names:
            if name not in known:
                problem = f"no model {name!r} yet{suggestion(name, known)}"
                raise ConfigError(path, f"{problem} (looked in {models})", f"{key}.model")
    try:
        cells(plan)
    except ValueError as error:
        raise ConfigError(path, str(error)) from error
    return plan


def model_names(models: Path) -> tuple[str, ...]:
    """The models that a study may name: those of the repository, and those that can be built."""
    repository = Repository(models)
    there = repository.names() if repository.exists else ()
    return tuple(sorted({*there, *RECIPES}))


def cells(plan: Plan) -> tuple[Cell, ...]:
    """The cells of a plan, in the order of the file; each once.

    Raises:
        ValueError: an exclusion that matches nothing, no cell left, or too many.
    """
    chosen = {axis: getattr(plan.axes, axis) for axis in AXES}
    wanted = [dict(zip(AXES, values, strict=True)) for values in product(*chosen.values())]
    for number, combination in enumerate(plan.exclude):
        given = combination.given()
        kept = [values for values in wanted if not all(values[axis] in given[axis] for axis in given)]
        if len(kept) == len(wanted):
            raise ValueError(f"exclude.{number} matches no combination: correct it or remove it")
        wanted = kept
    for combination in plan.include:
        given = {axis: values[:1] for axis, values in chosen.items()} | combination.given()
        wanted += [dict(zip(AXES, values, strict=True)) for values in product(*given.values())]
    for values in wanted:
        if values["scenario"] == "capacity":
            values["vehicles"] = 1  # It looks for their number itself.
    _check(wanted)
    varied = [axis for axis in AXES if len({values[axis] for values in wanted}) > 1]
    named = {name_of(values, varied): values for values in wanted}
    distinct = {tuple(values.items()) for values in wanted}
    if len(named) < len(distinct):
        raise ValueError("axes.link: two different links have one name: rename one")
    return tuple(Cell(name=name, **values) for name, values in named.items())


def _check(wanted: Sequence[Mapping[str, Any]]) -> None:
    for values in wanted:
        if values["workers"] > 1 and values["transport"] != MQTT and values["link"].is_felt:
            raise ValueError(
                f"link {values['link'].name} with {values['workers']} workers by {values['transport']}: a link leads to "
                "one address, so take transport mqtt, whose broker is one, or one worker"
            )
    if len(wanted) > MAX_CELLS:
        raise ValueError(f"{len(wanted)} cells: a study has at most {MAX_CELLS}; vary fewer axes")
    if not wanted:
        raise ValueError("exclude leaves nothing to run: correct it")


def values_of(planned: tuple[Cell, ...]) -> dict[str, list[Any]]:
    """Each axis with the values that occur in the cells, in their order; a link by its name."""
    found = {axis: list(dict.fromkeys(getattr(cell, axis) for cell in planned)) for axis in AXES}
    return found | {"link": [link.name for link in found["link"]]}
